-- fragments: code that the general path and the fast paths share; the loader inserts it where it is called.

-- == fragment UNPACKED(packed, unpack_limit): a record's fields, in a table of the right size at once.

{ select(2, unpack_limit(packed, FIELDS_NUMBER, RECORD_HEAD_BYTES)) }

-- == fragment READY_RANK(row, priority): where a ready job stands in its lane: by priority, turn, seq. The due time is
-- there to be read.

spack('>I4I8I8d', RANK_ZERO - priority, row[TURN] + TURN_ZERO, row[SEQ], row[DUE_AT])

-- == fragment WAITING_MEMBER(place, order, row): where a waiting job stands in its group: held ones first, by priority,
-- then without an order, by order, by seq. Takes what stands for its order: ORDER_BYTES, or nothing.

place .. (row[HELD] and '0' or '1') .. spack('>I4', RANK_ZERO - row[PRIORITY]) .. order .. spack('>I8', row[SEQ])
    .. row[ID]

-- == fragment ORDER_BYTES(order): an order in the member of a waiting job. A seq, which jobs without one have there,
-- begins with a zero byte.

'\1' .. spack('>I8', order + TURN_ZERO)

-- == fragment WAITING_ID(member, length): the id in the member of a waiting job, behind a place of that length.

sub(member, length + (byte(member, length + 6) == 1 and 23 or 14))

-- == fragment RUNNING_MEMBER(worker, row, queue): a lease in the index by worker and fence. Takes escaped names.

worker .. spack('>I8I8', row[FENCE], row[SEQ]) .. queue .. row[ID]

-- == fragment FINISHED_MEMBER(prefix, row): a finished job in the index by state, queue and seq.

prefix .. spack('>I8', row[SEQ]) .. row[ID]

-- == fragment LANE_BY_GROUP(group): the lane of a ready job whose task is neither paused nor has a lane of its own.

(group and 1 or 0)

-- == fragment TASK_LANE(task): the lane of jobs whose task is paused or has a lane of its own; else nothing.

hf.paused('t' .. task) and 2 or hf.task_of(task)[TASK_APART] and 3

-- == fragment IS_STRICT(rule, text, at): whether a group is strict: by its queue's rule, or because its name, which
-- begins in the text at this position, has the prefix of serial groups.

(rule[RULE_GROUP_ORDER] == 'strict' or sub(text, at, at + #SERIAL_PREFIX - 1) == SERIAL_PREFIX)

-- == fragment FREE_AT_START(terms): whether a job's key becomes free when it starts. Takes terms that are not false.

terms ~= true and terms[TERMS_UNTIL_STARTED] and terms[TERMS_HOLDS_KEY] and not terms[TERMS_WINDOW]

-- == fragment HAS_ORDER(row): whether its caller gave the job a place in its group.

(row[TERMS] and row[TERMS] ~= true and row[TERMS][TERMS_ORDER])

-- == fragment NEW_RECORD(job, state, seq, group, key, turn, lane, due_at, expires_at, terms): the record of a new job.
-- Fields that it does not name are 0 or false.

RECORD {
    id = job[NEW_ID], state = state, seq = seq, queue = job[NEW_QUEUE], task = job[NEW_TASK],
    priority = job[NEW_PRIORITY], group = group, key = key, turn = turn, lane = lane, max_stalls = job[NEW_MAX_STALLS],
    created_at = now, due_at = due_at, expires_at = expires_at, terms = terms,
}

-- == fragment CLOCK_SEQ(step): what the seqs of a shard, which come in steps, are at least.

(step > 1 and math.floor((now - SEQ_EPOCH) * 1000) * step or 0)

-- == fragment NEXT_SEQ(seq, clock_seq, step, rest): advance the number of the latest job. Each shard has its own
-- remainder, so no two shards give the same one.

seq = math.max(seq + 1, clock_seq)
seq = seq + (rest - seq) % step

-- == fragment LEASE_RECORD(row, tick, nonce, worker, number): lease a job: its new fence is the tick.

row[STATE], row[FENCE], row[TOKEN] = 'x', tick, nonce .. format('%x', tick)
row[WORKER], row[CLAIM_CALL], row[STARTED_AT], row[BEGUN] = worker, number, now, false

-- == fragment END_LEASE(row): void the token.

row[TOKEN], row[WORKER], row[CLAIM_CALL] = false, false, false

-- == fragment FINISH_RECORD(row, state, prune_at): finish a job. One without prune_at stays until an operator acts.

row[HELD], row[STATE], row[FINISHED_AT], row[PRUNE_AT] = false, state, now, prune_at

-- == fragment PRUNE_AT(retain): when a job that finishes now may be removed; its id stays known for a while.

now + math.max(retain, REMEMBER_SECONDS_MIN)

-- == fragment WINDOW_END(row, terms): when the window of the job's key ends. Takes terms with a window.

row[CREATED_AT] + terms[TERMS_WINDOW]

-- == fragment KEPT_VALUE(value): what a record says of its value: none, null, or kept beside it. Takes nil, true for
-- null, or its position in ARGV.

(value == true or value and 1 or false)

-- == fragment HAS_EXCEPTIONS(used): whether there are pauses, overrides or rate states of groups. Takes the features
-- that the store uses.

(find(used, 'p', 1, true) and call('HLEN', PAUSES) > 0 or find(used, 'o', 1, true) and call('HLEN', OVERRIDES) > 0
    or find(used, 'g', 1, true) and call('HLEN', GROUP_FLOWS) > 0)

-- == fragment BODIES_PASS(number): whether the bodies of this many jobs pass through the script: all are short, or
-- together they are not worth another trip.

((tonumber(meta.body_max) or HUGE) <= BODY_LATER or number * (tonumber(meta.body_max) or HUGE) <= BODIES_PASS_MAX)

-- == fragment BODY_OR_NAME(id): a job's body; of a long one its id in a list. The caller reads that one itself: what
-- passes through a script is hashed and copied several times.

call('HSTRLEN', BODIES, id) > BODY_LATER and { id } or call('HGET', BODIES, id)

-- == fragment PLAIN(name): a name without ODD_BYTES as a part of an index member; others need hf.escape.

name .. '\0'

-- == fragment KEY_NAME(queue, task, key): the field of a key that is unique in its queue. Takes escaped names.

'k' .. queue .. task .. key

-- == fragment GLOBAL_KEY_NAME(task, key): the field of a key that is unique among all queues. Takes an escaped name.

'g' .. task .. key

-- == fragment NEXT_TICK(tick): advance the counter, which is never below the clock, `micros`.

tick = tick + 1
if tick < micros then tick = micros end

-- == fragment EMIT_HINT(words...): emit a wake-up hint. If it is refused, the script still succeeds.

redis.pcall('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', words)
