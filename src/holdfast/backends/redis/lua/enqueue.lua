-- enqueue: store new jobs.

-- == script enqueue: store new jobs, all in one step.
-- Takes now, jobs and numbering (see part producing); from ARGV[2] on, the jobs' bodies.
-- Returns one letter per job (c created, k kept, r replaced) and the ids that replace those given, or a refusal.
-- Concurrency: a script runs alone; duplicates are refused before anything is written. A server whose memory is full
-- refuses it.

if sealed then return hf.refused_sealed() end
local answers, others = hf.enqueue(args[2], 2, args[3])
if not answers then return others end
hf.close()
return { answers, others }

-- == fast enqueue: the fast path for one job without delay or expiry, of a task without a rule; its group, if any,
-- must be strict, and its key, if any, free. Takes and returns the same as script enqueue. In any other case it falls
-- through to the script before anything is written. Concurrency: a script runs alone; HSETNX itself refuses an id that
-- already exists.

local job, used = args[2][1], meta[7]
local step, rest, least_seq, least_tick = unpack(args[3])
local tick, seq = tonumber(meta[2]) or 0, tonumber(meta[3] or 0) or HUGE
local id, task, queue, group, key = job[1], job[2], job[3], job[5] or false, job[6] or false
if #args[2] > 1 or sealed or #ARGV[2] > (tonumber(meta[8]) or HUGE)
    or job[8] or job[9] or job[10] or job[12] or seq < least_seq or tick < least_tick
    or not (seq >= 0 and seq < COUNTED_MAX and tick < COUNTED_MAX)
    or find(queue, ODD_BYTES) or group and find(group, ODD_BYTES) or key and find(task, ODD_BYTES) then break end
if used and (find(used, 'p', 1, true) and call('HLEN', PAUSES) > 0
    or find(used, 'o', 1, true) and call('HLEN', OVERRIDES) > 0
    or find(used, 'g', 1, true) and call('HLEN', GROUP_FLOWS) > 0
    or find(used, 'm', 1, true) and call('ZSCORE', REMEMBERED, id)
    or find(used, 't', 1, true) and call('HEXISTS', TASKS, task) == 1) then break end
local rule = call('HGET', RULES, queue)
local is_sound = true
if rule then is_sound, rule = pcall(cunpack, rule) end
if not is_sound or rule and type(rule) ~= 'table' then break end
if rule and (rule[6] or group and (rule[2] ~= 'strict' or rule[5])) then break end

local key_name = key and 'k' .. queue .. '\0' .. task .. '\0' .. key
if key and call('HEXISTS', KEYED, key_name) == 1 then break end

local waits, place = false, nil
if group then -- ready, if nothing of the group is in play and nothing else of it may be before
    place = queue .. '\0' .. group .. '\0'
    local low, high = '[' .. place, '(' .. place .. '\255'
    local in_play = call('ZLEXCOUNT', PLAY, low, high)
    waits = in_play == 1
    if in_play > 1 then break end
    if not waits and (call('ZLEXCOUNT', WAITING, low, high) > 0 or call('ZCOUNT', DUE, '-inf', now) > 0) then break end
end

seq = seq + 1
if step > 1 then
    seq = math.max(seq, math.floor((now - SEQ_EPOCH) * 1000) * step)
    seq = seq + (rest - seq) % step
end
local state, lane, turn = 'w', 0, false
if not waits then
    tick = math.max(tick + 1, math.floor(now * 1000000))
    state, lane, turn = 'r', group and 1 or 0, math.min(tick, TURN_ZERO)
end
local record = {
    id, state, seq, queue, task, job[4], group, key, turn, lane, 0, 0, 0, job[11], now, now, false, false, false, false,
    false, 0, false, false, false, false, false, false, false, 0, false, key and true,
}
if call('HSETNX', JOBS, id, cpack(record)) == 0 then return { 'k', {} } end
local seq_text, rank = format('%.0f', seq), 2147483648 - job[4]
call('HSET', BODIES, id, ARGV[2])
call('ZADD', SEQS, seq_text, id)
if key then call('HSET', KEYED, key_name, id) end
if waits then
    call('ZADD', WAITING, '0', place .. '1' .. spack('>I4I8', rank, seq) .. id)
    call('HSET', META, 'seq', seq_text)
else
    if group then call('ZADD', PLAY, '0', place .. id) end
    call('ZADD', READY, '0', queue .. '\0' .. lane .. spack('>I4I8I8d', rank, turn + TURN_ZERO, seq, now) .. id)
    call('HSET', META, 'tick', format('%.0f', tick), 'seq', seq_text)
    redis.pcall('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', 'q', queue)
end
return { 'c', {} }

-- == part producing: store new jobs, all in one step. Shared by enqueue and tick.
-- Takes jobs as [id, task, queue, priority, group, key, on_conflict, delay, due_at, expires, max_stalls, terms];
-- `terms` as in a record, with wait_max in place of due_max, or nil. `first` is the ARGV position of the first body.
-- Numbering: step and remainder of the seqs given here, and the values they stay above (seq_numbers.py).
-- Concurrency: a script runs alone; duplicates are refused before anything is written.

local SEQ_EPOCH = 1577836800

-- Returns the ids that already exist, and whether any of the jobs has a key.
function hf.known_among(jobs)
    local ids, known, n, any_key, any_remembered = {}, {}, #jobs, false, hf.any('m')
    for i = 1, n do
        ids[i] = jobs[i][1]
        if jobs[i][6] then any_key = true end
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

function hf.add(job, seq)
    local due_at = job[9] or now + (job[8] or 0)
    local key, terms = job[6] or false, job[12]
    if terms then
        terms[4], terms[6] = terms[4] and now + terms[4], key and true
    else
        terms = key and true
    end
    local row = {
        job[1], 's', seq, job[3], job[2], job[4], job[5] or false, key, false, 0, 0, 0, 0, job[11], now,
        due_at, job[10] and due_at + job[10] or false, false, false, false, false, 0, false, false, false, false, false,
        false, false, 0, false, terms,
    }
    hf.put(SEQS, job[1], format('%.0f', seq))
    hf.cache[job[1]] = row
    if key then hf.free_key(hf.key_name(row)) end
    if due_at > now then hf.enter(row) else hf.enter_play(row) end
end

-- Returns one letter per job (c created, k kept, r replaced) and the ids that replace those given; or, if a job may not
-- share its key, nil and the refusal.
function hf.enqueue(jobs, first, numbering)
    local step, rest, least_seq, least_tick = unpack(numbering)
    hf.seq, hf.tick = math.max(hf.seq, least_seq), math.max(hf.tick, least_tick)
    local clock_seq = step > 1 and math.floor((now - SEQ_EPOCH) * 1000) * step or 0
    local known, any_key = hf.known_among(jobs)
    if any_key then
        local duplicate, taken = hf.duplicate_in(jobs, known)
        if duplicate then return nil, hf.refused('DuplicateJob', { key = duplicate[6], existing_id = taken }) end
    end
    local answers, others, bodies, b, largest = {}, {}, {}, 0, 0
    for i = 1, #jobs do
        local job = jobs[i]
        local holder = not known[job[1]] and job[6] and hf.key_taken(hf.new_key_name(job))
        local stored = nil
        answers[i] = 'k'
        if not known[job[1]] and not holder then
            -- Above the last one. Each shard has its own remainder, so no two shards give the same seq.
            local least = math.max(hf.seq + 1, clock_seq)
            hf.seq = least + (rest - least) % step
            hf.add(job, hf.seq)
            answers[i], stored, known[job[1]] = 'c', job[1], true
        elseif holder then
            local state = holder[STATE]
            if (job[7] == 'replace' or job[7] == 'debounce') and hf.live_states[state] and state ~= 'x' then
                hf.replace(holder, job)
                answers[i], stored = 'r', holder[ID]
            end
            others[#others + 1], others[#others + 2] = i, holder[ID]
        end
        if stored then
            bodies[b + 1], bodies[b + 2] = stored, ARGV[first + i - 1]
            b, largest = b + 2, math.max(largest, #bodies[b + 2])
        end
    end
    if largest > (tonumber(meta[8]) or HUGE) then hf.note_largest(largest) end
    hf.in_pieces('HSET', BODIES, bodies, b)
    return concat(answers), others
end

-- == part conflicts: new jobs whose key is held by another job, or whose id is still known; jobs as in producing.
-- seldom: built when a script first uses one of its names.

-- Whether a job with this id was removed early to free memory, and its id must still be known.
function hf.is_remembered(id)
    local ends = call('ZSCORE', REMEMBERED, id)
    return ends and tonumber(ends) > now
end

-- The field name of a new job's key, as hf.key_name builds it for a stored job.
function hf.new_key_name(job)
    if job[12] and job[12][1] then return 'g' .. hf.escape(job[2]) .. job[6] end
    return 'k' .. hf.escape(job[3]) .. hf.escape(job[2]) .. job[6]
end

-- The first job that may not share its key, and the id that holds it; earlier jobs of the batch count as holders.
function hf.duplicate_in(jobs, known)
    local seen, keys = {}, {}
    for i = 1, #jobs do
        local job = jobs[i]
        if job[6] and not known[job[1]] and not seen[job[1]] then
            local name = hf.new_key_name(job)
            local holder = hf.key_taken(name)
            local taken = holder and holder[ID] or keys[name]
            if taken and job[7] == 'raise' then return job, taken end
            if not taken then
                keys[name] = job[1]
                seen[job[1]] = true
            end
        else
            seen[job[1]] = true
        end
    end
end

-- Gives an unstarted job the call of a newer one with its key. Id, seq and due_max stay; so does its turn if possible.
function hf.replace(row, job)
    local was_in, had_key = hf.leave(row)
    local group, terms, due_max = job[5] or false, job[12] or true, row[TERMS] ~= true and row[TERMS][4]
    row[DUE_AT] = job[9] or now + (job[8] or 0)
    if job[7] == 'debounce' and due_max then row[DUE_AT] = math.min(row[DUE_AT], math.max(due_max, now)) end
    if due_max and terms == true then terms = { false, false, false, false, false } end
    if terms ~= true then terms[4], terms[6] = due_max or false, true end
    row[TERMS] = terms
    row[HELD] = row[HELD] and row[GROUP] == group
    local in_line = row[DUE_AT] <= now and row[GROUP] == group and row[PRIORITY] == job[4]
    row[PRIORITY], row[GROUP] = job[4], group
    row[MAX_STALLS] = math.max(job[11], row[STALLS])
    row[EXPIRES_AT] = job[10] and row[DUE_AT] + job[10] or false
    row[TURN], row[STATE] = in_line and row[TURN] or false, 's'
    if row[DUE_AT] > now then hf.enter(row, was_in, had_key) else hf.enter_play(row, was_in, had_key) end
end

-- == part holding: which job holds a key, and whether another may take it. Takes names as hf.key_name builds them.
-- seldom: built when a script first uses one of its names.

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
