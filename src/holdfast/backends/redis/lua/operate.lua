-- operate: operator verbs for single jobs and dead letters.

-- == script cancel: cancel an unstarted job, mark a running one; a cancelled one stays as it is.
-- args: now, id, by, reason
-- Returns the job's pieces, or a refusal. Concurrency: a script runs alone, so the state it judged is the one it
-- changes; the same holds for all scripts of this file.

local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
local state = row[STATE]
if hf.live_states[state] then
    if sealed and state ~= 'x' then return hf.refused_sealed() end
    hf.cancel(row, args.by, args.reason)
elseif state ~= 'c' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'cancel', state = state })
end
hf.close()
return hf.pieces_of({ row[ID] })

-- == script bury: an operator buries an unstarted job, with a dead letter.
-- args: now, id, reason, by
-- Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
if row[STATE] == 'x' or not hf.live_states[row[STATE]] then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'bury', state = row[STATE] })
end
hf.bury_unstarted(row, 'bury', args.reason ~= '' and args.reason or 'text:buried')
hf.mark(row, { kind = 'bury', by = args.by })
hf.count_ended(row, 'dead')
hf.close()
return hf.pieces_of({ row[ID] })

-- == script run_now: make a scheduled job due now.
-- args: now, id, by
-- Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
if row[STATE] ~= 's' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'run_now', state = row[STATE] })
end
local was_in, had_key = hf.leave(row)
row[DUE_AT] = now
hf.enter_play(row, was_in, had_key)
hf.mark(row, { kind = 'run_now', by = args.by })
hf.close()
return hf.pieces_of({ row[ID] })

-- == script rejoin: let the parents of a dead or cancelled job decide about it again.
-- args: now, id, by
-- Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
local dependent, reason = hf.any('e') and hf.dependent(row[ID]), row[REASON]
if row[STATE] ~= 'd' and row[STATE] ~= 'c' or not dependent or dependent[DEPENDENT_PENDING] == 0
    or reason == 'superseded' or reason == 'discarded' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'rejoin', state = row[STATE] })
end
row[REASON] = 'parent'
hf.changed[row[ID]] = row
hf.mark(row, { kind = 'retry', by = args.by })
hf.decide_child(row[ID], dependent)
hf.close()
return hf.pieces_of({ row[ID] })

-- == script revive: bring a dead job back with fresh budgets and record that in its letter; retry takes any finished
-- job.
-- args: now, id, verb, by
-- The verb is revive or retry. Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local verb = args.verb
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
local state = row[STATE]

local function conflict(live, heir)
    return hf.refused('StateConflict', { job_id = row[ID], verb = verb, state = state, live_id = live,
        heir_id = heir })
end

if hf.live_states[state] then
    if verb == 'retry' then return conflict() end
    if hf.held_letter(row[ID]) then return hf.pieces_of({ row[ID] }) end -- revived before: nothing to do
end
if verb == 'revive' and state ~= 'd' then return conflict() end
local taken = row[KEY] and hf.key_taken(hf.key_name(row))
if taken and taken ~= row then return conflict(taken[ID]) end
if state == 'd' then
    local letter = hf.letter_at(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then return conflict(nil, letter.id) end
    hf.revive(row, 0)
else
    if state == 'o' and hf.any('s') then hf.forget_steps({ row[ID] }) end
    hf.requeue(row)
end
hf.mark(row, { kind = state == 'd' and 'revive' or 'retry', by = args.by })
hf.close()
return hf.pieces_of({ row[ID] })

-- == script annotate: add a note to a job's timeline, whatever its state.
-- args: now, id, text, by
-- Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
hf.mark(row, { kind = 'note', by = args.by, text = args.text })
return hf.pieces_of({ row[ID] })

-- == script free_key: free the key that a job holds; the job continues without it.
-- args: now, id, by
-- Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
if row[KEY] and hf.holds(row) then
    hf.set_holds(row, false)
    hf.note_key(row, true)
    hf.changed[row[ID]] = row
    hf.mark(row, { kind = 'free_key', by = args.by })
end
hf.close()
return hf.pieces_of({ row[ID] })

-- == script discard: remove a dead letter; its job stays dead, reason "discarded", and may be pruned.
-- args: now, id, by
-- Returns the letter, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
local logical = row and hf.held_letter(args.id)
if not logical then return hf.refused('JobNotFound', { job_id = args.id, what = 'dead letter' }) end
if hf.live_states[row[STATE]] then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'discard', state = row[STATE] })
end
local packed = call('HGET', LETTERS, logical)
hf.drop_letter(logical)
hf.release_letter(row, 'discarded')
hf.mark(row, { kind = 'discard', by = args.by })
hf.close()
return { packed }

-- == part letters: the one dead letter of each logical job: read, store, drop, and THE routine by which jobs die.
-- Takes rows already removed from the index (leave); letters are written at once, in the same step as the job's record.
-- A body is the lengths of arguments and options, then arguments, options and the packed revival policy.
-- lazy: built when a script first uses one of its names.

local HISTORY_KEPT_MAX, REMEMBER_SECONDS_MIN = 10, 600
local COPY_MARK = '\1' -- begins the note of a copy; other notes are JSON
local NO_BODY = '\0\0\0\2\0\0\0\0{}\192' -- for a job whose body was removed or truncated: it can still be buried
hf.letter_memo = {}

-- The letter of a logical job, or false.
function hf.letter_at(logical)
    if not hf.any('d') then return false end
    local letter = hf.letter_memo[logical]
    if letter == nil then
        local packed = call('HGET', LETTERS, logical)
        letter = packed and hf.sound_letter(hf.read(packed))
        if packed and not letter then hf.keep_unread('letters', logical, packed) end
        hf.letter_memo[logical] = letter
    end
    return letter
end

-- The logical job whose letter this job holds, or nil.
function hf.held_letter(id)
    local prefix = hf.escape(id)
    local member = call('ZRANGEBYLEX', HOLDERS, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1', 'LIMIT', 0, 1)[1]
    return member and sub(member, #prefix + 1)
end

-- The letter's member in dead: by task and the time of the latest failure; the job's seq breaks ties.
function hf.dead_member(logical, letter)
    local row = hf.row_of(letter.id)
    return hf.escape(letter.task) .. spack('>dI8', letter.failed_at, row and row[SEQ] or 0) .. logical
end

function hf.drop_letter(logical)
    local letter = hf.letter_at(logical)
    if letter then
        call('ZREM', DEAD, hf.dead_member(logical, letter))
        call('HDEL', LETTERS, logical)
        call('ZREM', HOLDERS, hf.escape(letter.id) .. logical)
        call('ZREM', FAILED, logical)
        call('ZREM', REVIVALS, logical)
        hf.letter_memo[logical] = false
    end
    return letter
end

function hf.keep_letter(logical, letter)
    hf.drop_letter(logical)
    hf.use('d')
    hf.letter_memo[logical] = letter
    call('HSET', LETTERS, logical, cpack(letter))
    call('ZADD', HOLDERS, 0, hf.escape(letter.id) .. logical)
    call('ZADD', FAILED, letter.failed_at, logical)
    call('ZADD', DEAD, 0, hf.dead_member(logical, letter))
    if letter.revive_at then call('ZADD', REVIVALS, letter.revive_at, logical) end
end

-- A dead job no longer holds its letter: it stays dead, may be pruned and stops no group.
function hf.release_letter(row, reason)
    local was_in, had_key = hf.leave(row)
    row[REASON], row[HELD] = reason, false
    row[PRUNE_AT] = math.max(PRUNE_AT(0), hf.window_end(row) or 0)
    hf.enter(row, was_in, had_key)
end

-- Another job with the key took over or closed the letter. A job that was revived continues without it.
function hf.supersede(id)
    local row = hf.row_of(id)
    if row and row[STATE] == 'd' then hf.release_letter(row, 'superseded') end
end

function hf.cooldown(revival, cycles)
    if not revival or cycles >= revival.cycles then return nil end
    local seconds = revival.after * revival.factor ^ cycles
    if seconds ~= seconds or seconds > revival.cap then return revival.cap end
    return seconds
end

-- Buries the job, and creates or merges the one letter of the logical job. `stops`: the job stops its group.
function hf.bury(row, was_in, had_key, reason, failure, stops)
    FINISH_RECORD(row, 'd', false)
    row[HELD] = stops or false
    if row[TERMS] then hf.end_key(row) end
    row[REASON] = reason
    hf.enter(row, was_in, had_key)
    if hf.any('e') then hf.note_ended(row) end
    local logical = hf.logical_of(row)
    local earlier = hf.letter_at(logical)
    local body = call('HGET', BODIES, row[ID]) or NO_BODY
    if #body < BODY_HEAD then body = NO_BODY end
    local args_length, options_length, args_from = struct.unpack('>I4I4', body)
    local revival = hf.sound_revival(hf.read(sub(body, args_from + args_length + options_length)))
    local cycles = earlier and earlier.cycles or 0
    local wait = hf.cooldown(revival, cycles)
    local letter = {
        id = row[ID], task = row[TASK], queue = row[QUEUE], key = row[KEY] or nil, group = row[GROUP] or nil,
        args = sub(body, args_from, args_from + args_length - 1), failure_count = 1, first_failed_at = now,
        failed_at = now, reason = reason, error = failure, history = {}, cycles = cycles,
        revive_at = wait and now + wait,
    }
    if earlier then
        letter.failure_count = earlier.failure_count + 1
        letter.first_failed_at = earlier.first_failed_at
        letter.history = earlier.history
        local text = earlier.error and earlier.error.text or ''
        local args = earlier.args ~= letter.args and earlier.args or nil
        local past = { job_id = earlier.id, at = earlier.failed_at, reason = earlier.reason, error = text, args = args }
        table.insert(letter.history, past)
        if #letter.history > HISTORY_KEPT_MAX then table.remove(letter.history, 1) end
        if earlier.id ~= row[ID] then hf.supersede(earlier.id) end
    end
    hf.keep_letter(logical, letter)
    local rule = hf.rule_of(row[QUEUE])
    if rule[RULE_DEAD_QUEUE] then
        local options = sub(body, args_from + args_length, args_from + args_length + options_length - 1)
        hf.send_copy(row, rule, reason, letter, options)
    end
end

-- == part copies: a copy of a dead job in another queue (R120), as dead_copies.py describes it.
-- lazy: built when a script first uses one of its names.

local DEATHS = '"dead":['
local ESCAPES = { ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t' }

local function quoted(text)
    local function escaped(one)
        if one == '"' or one == '\\' then return '\\' .. one end
        return ESCAPES[one] or format('\\u%04x', byte(one))
    end
    return '"' .. string.gsub(text, '[%z\1-\31"\\]', escaped) .. '"'
end

-- The options of a copy: dead_copies.with_death.
function hf.with_death(options, row, reason)
    local named = '{"version":1,"queue":' .. quoted(row[QUEUE]) .. ',"id":' .. quoted(row[ID])
    local death = named .. ',"reason":' .. quoted(reason) .. '}'
    if #options <= 2 or sub(options, -1) ~= '}' then return '{' .. DEATHS .. death .. ']}' end
    local _, ends = find(options, DEATHS, 1, true)
    if ends then return sub(options, 1, ends) .. death .. ',' .. sub(options, ends + 1) end
    return sub(options, 1, -2) .. ',' .. DEATHS .. death .. ']}'
end

-- Stores it scheduled and due, so that promote brings it into play; in a shard, notes it for the shard it belongs to.
function hf.send_copy(row, rule, reason, letter, options)
    local target = rule[RULE_DEAD_QUEUE]
    if type(target) ~= 'string' then return end
    if find(options, '{"version":1,"queue":' .. quoted(target) .. ',', 1, true) then return end
    local id = row[ID] .. format('.%.0f.%.0f', letter.failure_count, math.floor(now * 1000000))
    options = hf.with_death(options, row, reason)
    local order = hf.order_of(row)
    local body = spack('>I4I4', #letter.args, #options) .. letter.args .. options .. '\192'
    if rule[RULE_ELSEWHERE] then
        local facts = cpack({ id, row[TASK], target, row[PRIORITY], row[GROUP], row[MAX_STALLS], order })
        call('HSET', NOTES, id, COPY_MARK .. spack('>I4', #facts) .. facts .. body)
        hf.post('j', id)
    elseif not hf.row_of(id) then
        local job = {}
        job[NEW_ID], job[NEW_TASK], job[NEW_QUEUE] = id, row[TASK], target
        job[NEW_PRIORITY], job[NEW_MAX_STALLS] = row[PRIORITY], row[MAX_STALLS]
        local terms = order and { false, false, false, false, false, false, order }
        hf.seq = hf.seq + 1
        local copy = NEW_RECORD(job, 's', hf.seq, row[GROUP], false, false, 0, now, false, terms)
        hf.put(SEQS, id, format('%.0f', hf.seq))
        hf.cache[id] = copy
        hf.enter(copy)
        call('HSET', BODIES, id, body)
        if #body > (tonumber(meta.body_max) or HUGE) then hf.raise_body_max(#body) end
        hf.to_wake[target] = true
    end
end

-- == part revival: a finished job comes back with fresh budgets and its key; its errors stay on record.
-- lazy: built when a script first uses one of its names.

-- With a due time it is scheduled for then, else it comes into play.
function hf.requeue(row, due_at)
    local was_in, had_key = hf.leave(row)
    if row[KEY] and not had_key then
        hf.free_key(hf.key_name(row))
        hf.set_holds(row, true)
    end
    if row[VALUE] == 1 then call('HDEL', VALUES, row[ID]) end
    call('HDEL', PROGRESS, row[ID])
    row[TURN], row[ATTEMPTS], row[FAILURES], row[STALLS] = false, 0, 0, 0
    row[SHARED_STALLS], row[SUSPECT] = 0, false
    row[DUE_AT], row[EXPIRES_AT], row[FINISHED_AT], row[PRUNE_AT] = due_at or now, false, false, false
    row[REASON], row[VALUE], row[BEGUN], row[CANCEL_REQUESTED] = false, false, false, false
    if due_at then
        row[STATE] = 's'
        hf.enter(row, was_in, had_key)
    else
        hf.enter_play(row, was_in, had_key)
    end
    if hf.any('e') then hf.note_ended(row) end
end

-- Brings a dead job back; its letter stays and records it. `cycles` is 1 for an automatic revival.
function hf.revive(row, cycles)
    hf.requeue(row)
    local logical = hf.logical_of(row)
    local letter = hf.letter_at(logical)
    if letter and letter.id == row[ID] then
        letter.revived_at, letter.revive_at, letter.cycles = now, nil, letter.cycles + cycles
        hf.keep_letter(logical, letter)
    end
end

-- == part refusals: how a script returns that it did nothing, and why.
-- lazy: built when a script first uses one of its names.

function hf.refused(error, facts) return { 'refused', error, cpack(facts) } end

function hf.refused_sealed() return hf.refused('StoreSealed', { seal = sealed }) end
