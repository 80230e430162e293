-- enqueue: store new jobs.

-- == script enqueue: store new jobs, all in one step.
-- args: now, jobs, numbering
-- raw: bodies...
-- A job is NEW; its terms are TERMS with wait_max in place of due_max, or nil. Numbering: step and remainder of the
-- seqs given here, and the values that seqs and ticks stay above (formulas.py).
-- Returns one letter per job (c created, k kept, r replaced) and the ids that replace those given, or a refusal. For a
-- call of one job that created it and whose group has no room for it yet, w instead of c.
-- Concurrency: a script runs alone; duplicates are refused before anything is written. A server whose memory is full
-- refuses it.

if sealed then return hf.refused_sealed() end
local answers, others = hf.enqueue(args.jobs, PLACE.bodies, args.numbering)
if not answers then return others end
hf.close()
if answers == 'c' and hf.cache[args.jobs[1][NEW_ID]][STATE] == 'w' then answers = 'w' end
return { answers, others }

-- == fast enqueue: the fast path for one job without delay or expiry, of a task without a rule; its group, if any,
-- must be strict, and its key, if any, free. Takes and returns the same as script enqueue. In any other case it falls
-- through to the script before anything is written. Concurrency: a script runs alone; HSETNX itself refuses an id that
-- already exists.

local job, used = args.jobs[1], meta.used
local step, rest, least_seq, least_tick = unpack(args.numbering)
local tick, seq = tonumber(meta.tick) or 0, tonumber(meta.seq or 0) or HUGE
local id, task, queue = job[NEW_ID], job[NEW_TASK], job[NEW_QUEUE]
local group, key = job[NEW_GROUP] or false, job[NEW_KEY] or false
if #args.jobs > 1 or sealed or #ARGV.bodies > (tonumber(meta.body_max) or HUGE)
    or job[NEW_DELAY] or job[NEW_DUE_AT] or job[NEW_EXPIRES] or job[NEW_TERMS] or seq < least_seq or tick < least_tick
    or not (seq >= 0 and seq < COUNTED_MAX and tick < COUNTED_MAX)
    or find(queue, ODD_BYTES) or group and find(group, ODD_BYTES) or key and find(task, ODD_BYTES) then break end
if used and (HAS_EXCEPTIONS(used) or find(used, 'm', 1, true) and call('ZSCORE', REMEMBERED, id)
    or find(used, 't', 1, true) and call('HEXISTS', TASKS, task) == 1) then break end
local rule = call('HGET', RULES, queue)
local is_sound = true
if rule then is_sound, rule = pcall(cunpack, rule) end
if not is_sound or rule and type(rule) ~= 'table' then break end
if rule and (rule[RULE_AGING] or group and (rule[RULE_GROUP_ORDER] ~= 'strict' or rule[RULE_GROUP_RATE]
    or rule[RULE_ORDER_WINDOW])) then break end

local key_name = key and KEY_NAME(PLAIN(queue), PLAIN(task), key)
if key and call('HEXISTS', KEYED, key_name) == 1 then break end

local waits, place = false, nil
if group then -- ready, if nothing of the group is in play and nothing else of it may be before
    place = PLAIN(queue) .. PLAIN(group)
    local low, high = '[' .. place, '(' .. place .. '\255'
    local in_play = call('ZLEXCOUNT', PLAY, low, high)
    waits = in_play == 1
    if in_play > 1 then break end
    if not waits and (call('ZLEXCOUNT', WAITING, low, high) > 0 or call('ZCOUNT', DUE, '-inf', now) > 0) then break end
end

NEXT_SEQ(seq, CLOCK_SEQ(step), step, rest)
local state, lane, turn = 'w', 0, false
if not waits then
    local micros = math.floor(now * 1000000)
    NEXT_TICK(tick)
    state, lane, turn = 'r', LANE_BY_GROUP(group), math.min(tick, TURN_ZERO)
end
local record = NEW_RECORD(job, state, seq, group, key, turn, lane, now, false, key and true)
if call('HSETNX', JOBS, id, cpack(record)) == 0 then return { 'k', {} } end
local seq_text = format('%.0f', seq)
call('HSET', BODIES, id, ARGV.bodies)
call('ZADD', SEQS, seq_text, id)
if key then call('HSET', KEYED, key_name, id) end
if waits then
    call('ZADD', WAITING, '0', WAITING_MEMBER(place, '', record))
    call('HSET', META, 'seq', seq_text)
else
    if group then call('ZADD', PLAY, '0', place .. id) end
    call('ZADD', READY, '0', PLAIN(queue) .. lane .. READY_RANK(record, record[PRIORITY]) .. id)
    call('HSET', META, 'tick', format('%.0f', tick), 'seq', seq_text)
    EMIT_HINT('q', queue)
end
return { waits and 'w' or 'c', {} }

-- == part new_jobs: store new jobs, all in one step. Shared by enqueue and tick.
-- Takes jobs as [id, task, queue, priority, group, key, on_conflict, delay, due_at, expires, max_stalls, terms];
-- `terms` as in a record, with wait_max in place of due_max, or nil. `first` is the ARGV position of the first body.
-- Numbering: step and remainder of the seqs given here, and the values they stay above (formulas.py).
-- Concurrency: a script runs alone; duplicates are refused before anything is written.

local SEQ_EPOCH = 1577836800

-- Returns the ids that already exist, and whether any of the jobs has a key.
function hf.known_among(jobs)
    local ids, known, n, any_key, any_remembered = {}, {}, #jobs, false, hf.any('m')
    for i = 1, n do
        ids[i] = jobs[i][NEW_ID]
        if jobs[i][NEW_KEY] then any_key = true end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(ids, from, upto))
        for i = from, upto do
            if found[i - from + 1] or any_remembered and hf.is_remembered(ids[i]) then known[ids[i]] = true end
        end
    end
    return known, any_key
end

-- When a new job is due: formulas.due_time.
function hf.due_of(job)
    if job[NEW_DUE_AT] or job[NEW_DELAY] then return job[NEW_DUE_AT] or now + job[NEW_DELAY] end
    local terms = job[NEW_TERMS]
    local has_order = terms and terms[TERMS_ORDER] and job[NEW_GROUP]
    return now + (has_order and hf.rule_of(job[NEW_QUEUE])[RULE_ORDER_WINDOW] or 0)
end

-- Lists a job that is due later. One with an order may go before others of its group at once.
function hf.enter_later(row, was_in, had_key)
    hf.enter(row, was_in, had_key)
    if row[GROUP] and hf.order_of(row) then hf.touch(hf.place_of(row[QUEUE], row[GROUP]), true) end
end

function hf.add(job, seq)
    local due_at = hf.due_of(job)
    local key, terms = job[NEW_KEY] or false, job[NEW_TERMS]
    if terms then
        terms[TERMS_DUE_MAX], terms[TERMS_HOLDS_KEY] = terms[TERMS_DUE_MAX] and now + terms[TERMS_DUE_MAX], key and true
    else
        terms = key and true
    end
    local expires_at = job[NEW_EXPIRES] and due_at + job[NEW_EXPIRES] or false
    local row = NEW_RECORD(job, 's', seq, job[NEW_GROUP] or false, key, false, 0, due_at, expires_at, terms)
    hf.put(SEQS, job[NEW_ID], format('%.0f', seq))
    hf.cache[job[NEW_ID]] = row
    if key then hf.free_key(hf.key_name(row)) end
    if due_at > now then hf.enter_later(row) else hf.enter_play(row) end
end

-- Returns one letter per job (c created, k kept, r replaced) and the ids that replace those given; or, if a job may not
-- share its key, or cannot be linked as `links` says, nil and the refusal.
function hf.enqueue(jobs, first, numbering, links)
    local step, rest, least_seq, least_tick = unpack(numbering)
    hf.seq, hf.tick = math.max(hf.seq, least_seq), math.max(hf.tick, least_tick)
    local clock_seq = CLOCK_SEQ(step)
    local known, any_key = hf.known_among(jobs)
    if any_key then
        local duplicate, taken = hf.duplicate_in(jobs, known)
        if duplicate then return nil, hf.refused('DuplicateJob', { key = duplicate[NEW_KEY], existing_id = taken }) end
    end
    if links then
        local refusal = hf.unlinkable(jobs, known, links)
        if refusal then return nil, refusal end
    end
    local answers, others, bodies, b, largest = {}, {}, {}, 0, 0
    for i = 1, #jobs do
        local job = jobs[i]
        local holder = not known[job[NEW_ID]] and job[NEW_KEY] and hf.key_taken(hf.new_key_name(job))
        local stored = nil
        answers[i] = 'k'
        if not known[job[NEW_ID]] and not holder then
            NEXT_SEQ(hf.seq, clock_seq, step, rest)
            hf.add(job, hf.seq)
            answers[i], stored, known[job[NEW_ID]] = 'c', job[NEW_ID], true
        elseif holder then
            local state = holder[STATE]
            local on_conflict = job[NEW_ON_CONFLICT]
            if (on_conflict == 'replace' or on_conflict == 'debounce') and hf.live_states[state] and state ~= 'x'
                and holder[DUE_AT] ~= DUE_AFTER_PARENTS
                and not (hf.any('s') and #hf.steps_of(holder[ID], '') > 0) then -- it has begun
                hf.replace(holder, job)
                answers[i], stored = 'r', holder[ID]
            elseif on_conflict == 'extend' then
                hf.extend(holder, job[NEW_TERMS])
            end
            others[#others + 1], others[#others + 2] = i, holder[ID]
        end
        if stored then
            bodies[b + 1], bodies[b + 2] = stored, ARGV[first + i - 1]
            b, largest = b + 2, math.max(largest, #bodies[b + 2])
        end
    end
    if largest > (tonumber(meta.body_max) or HUGE) then hf.raise_body_max(largest) end
    hf.in_pieces('HSET', BODIES, bodies, b)
    return concat(answers), others
end

-- == part conflicts: new jobs whose key is held by another job, or whose id is still known; jobs as in new_jobs.
-- lazy: built when a script first uses one of its names.

-- Whether a job with this id was removed early to free memory, and its id must still be known.
function hf.is_remembered(id)
    local ends = call('ZSCORE', REMEMBERED, id)
    return ends and tonumber(ends) > now
end

-- A later call prolongs the window of the holder's key; a finished holder is kept as long.
function hf.extend(row, new_terms)
    local terms, more = row[TERMS], new_terms and new_terms[TERMS_WINDOW]
    if not more or not terms or terms == true or not terms[TERMS_WINDOW] then return end
    terms[TERMS_WINDOW] = math.max(terms[TERMS_WINDOW], now - row[CREATED_AT] + more)
    if row[PRUNE_AT] then
        row[PRUNE_AT] = math.max(row[PRUNE_AT], hf.window_end(row))
        hf.put(PRUNABLE, row[ID], hf.score_of(row[PRUNE_AT]))
    end
    hf.changed[row[ID]] = row
end

-- The field name of a new job's key, as hf.key_name builds it for a stored job.
function hf.new_key_name(job)
    local task, key, terms = hf.escape(job[NEW_TASK]), job[NEW_KEY], job[NEW_TERMS]
    if terms and terms[TERMS_GLOBAL] then return GLOBAL_KEY_NAME(task, key) end
    return KEY_NAME(hf.escape(job[NEW_QUEUE]), task, key)
end

-- The first job that may not share its key, and the id that holds it; earlier jobs of the batch count as holders.
function hf.duplicate_in(jobs, known)
    local seen, keys = {}, {}
    for i = 1, #jobs do
        local job = jobs[i]
        if job[NEW_KEY] and not known[job[NEW_ID]] and not seen[job[NEW_ID]] then
            local name = hf.new_key_name(job)
            local holder = hf.key_taken(name)
            local taken = holder and holder[ID] or keys[name]
            if taken and job[NEW_ON_CONFLICT] == 'raise' then return job, taken end
            if not taken then
                keys[name] = job[NEW_ID]
                seen[job[NEW_ID]] = true
            end
        else
            seen[job[NEW_ID]] = true
        end
    end
end

-- Replaces an unstarted job's call by a newer one of its key. Id, seq and due_max stay; so does its turn if possible.
function hf.replace(row, job)
    hf.touch_waited(row)
    local was_in, had_key = hf.leave(row)
    local group, terms = job[NEW_GROUP] or false, job[NEW_TERMS] or true
    local due_max = row[TERMS] ~= true and row[TERMS][TERMS_DUE_MAX]
    row[DUE_AT] = hf.due_of(job)
    if job[NEW_ON_CONFLICT] == 'debounce' and due_max then
        row[DUE_AT] = math.min(row[DUE_AT], math.max(due_max, now))
    end
    if due_max and terms == true then terms = { false, false, false, false, false } end
    if terms ~= true then terms[TERMS_DUE_MAX], terms[TERMS_HOLDS_KEY] = due_max or false, true end
    local order = hf.order_of(row)
    row[TERMS] = terms
    row[HELD] = row[HELD] and row[GROUP] == group
    local in_line = row[DUE_AT] <= now and row[GROUP] == group and row[PRIORITY] == job[NEW_PRIORITY]
        and hf.order_of(row) == order
    row[PRIORITY], row[GROUP] = job[NEW_PRIORITY], group
    row[MAX_STALLS] = math.max(job[NEW_MAX_STALLS], row[STALLS])
    row[EXPIRES_AT] = job[NEW_EXPIRES] and row[DUE_AT] + job[NEW_EXPIRES] or false
    row[TURN], row[STATE] = in_line and row[TURN] or false, 's'
    if row[DUE_AT] > now then hf.enter_later(row, was_in, had_key) else hf.enter_play(row, was_in, had_key) end
end

-- == part key_holders: which job holds a key, and whether another may take it. Takes names as hf.key_name builds them.
-- lazy: built when a script first uses one of its names.

-- The job that the index lists as holding the key, or nil.
function hf.key_holder(name)
    local id = hf.key_changes[name]
    if id == nil then id = call('HGET', KEYED, name) end
    return id and hf.row_of(id) or nil
end

-- The job that keeps others from taking the key, or nil. A job whose window has ended no longer does.
function hf.key_taken(name)
    local row = hf.key_holder(name)
    local ends = row and hf.window_end(row)
    return not (ends and now >= ends) and row or nil
end

-- Another job takes the key: clear the flag of a holder whose window has ended.
function hf.free_key(name)
    local row = hf.key_holder(name)
    if row then
        hf.set_holds(row, false)
        hf.changed[row[ID]] = row
    end
end
