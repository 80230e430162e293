-- enqueue: store new jobs, all in one step.
-- Takes now, jobs as [id, task, queue, priority, group, key, on_conflict, delay, due_at, expires, max_stalls];
-- then step and rest of the seqs given here, and what seqs and ticks are above (numbering.py); from ARGV[2] on, their
-- bodies.
-- Returns one letter per job (c created, k kept, r replaced) and the ids answered in place of those given.
-- Safe against a rival: a script runs alone; duplicates are refused before anything is written. Refused by a server
-- whose memory is full.
-- needs: opening turns names rows index refilling closing

if sealed then return hf.refused_sealed() end
local SEQ_EPOCH = 1577836800
local jobs, step, rest = args[2], args[3], args[4]
hf.seq, hf.tick = math.max(hf.seq, args[5]), math.max(hf.tick, args[6])
local clock_seq = step > 1 and math.floor((now - SEQ_EPOCH) * 1000) * step or 0
local ids, n = {}, #jobs
for i = 1, n do ids[i] = jobs[i][1] end
local known = {}
for from = 1, n, ARGUMENTS_MAX do
    local upto = math.min(n, from + ARGUMENTS_MAX - 1)
    local found = call('HMGET', JOBS, unpack(ids, from, upto))
    for i = from, upto do
        if found[i - from + 1] then known[ids[i]] = true end
    end
end

-- Above the last one; of several shards each has a rest of its own, so that no two give the same.
local function next_seq()
    local least = math.max(hf.seq + 1, clock_seq)
    hf.seq = least + (rest - least) % step
    return hf.seq
end

local function logical_name(job) return 'k' .. hf.escape(job[3]) .. hf.escape(job[2]) .. job[6] end

-- Raise for the first job that may not share its key, looking also at those before it in the batch.
local seen, keys = {}, {}
for i = 1, n do
    local job = jobs[i]
    if job[6] and not known[job[1]] and not seen[job[1]] then
        local logical = logical_name(job)
        local taken = hf.live_with(logical) or keys[logical]
        if taken and job[7] == 'raise' then return hf.refused('DuplicateJob', { key = job[6], existing_id = taken }) end
        if not taken then
            keys[logical] = job[1]
            seen[job[1]] = true
        end
    else
        seen[job[1]] = true
    end
end

local bodies, b = {}, 0

local function store(place, id)
    bodies[b + 1], bodies[b + 2] = id, ARGV[place + 1]
    b = b + 2
end

local function add(place, job)
    local due_at = job[9] or now + (job[8] or 0)
    local group = job[5] or false
    local row = {
        job[1], 's', next_seq(), job[3], job[2], job[4], group, job[6] or false, false, 0, 0, 0, 0, job[11], now,
        due_at, job[10] and due_at + job[10] or false, false, false, false, false, 0, false, false, false, false, false,
        false, false, 0, false,
    }
    hf.put(SEQS, job[1], format('%.0f', row[SEQ]))
    hf.cache[job[1]] = row
    known[job[1]] = true
    store(place, job[1])
    if due_at > now then hf.enter(row) else hf.enter_play(row) end
end

-- Give an unstarted job the call of a newer one of its key; id and seq stay, its place is found anew.
local function replace(place, row, job)
    local was_in, was_live = hf.leave(row)
    local group = job[5] or false
    row[HELD] = row[HELD] and row[GROUP] == group
    row[PRIORITY], row[GROUP] = job[4], group
    row[MAX_STALLS] = math.max(job[11], row[STALLS])
    row[DUE_AT] = job[9] or now + (job[8] or 0)
    row[EXPIRES_AT] = job[10] and row[DUE_AT] + job[10] or false
    row[TURN] = false
    row[STATE] = 's'
    store(place, row[ID])
    if row[DUE_AT] > now then hf.enter(row, was_in, was_live) else hf.enter_play(row, was_in, was_live) end
end

local answers, others = {}, {}
for i = 1, n do
    local job = jobs[i]
    local live = not known[job[1]] and job[6] and hf.live_with(logical_name(job))
    if known[job[1]] then
        answers[i] = 'k'
    elseif not live then
        add(i, job)
        answers[i] = 'c'
    else
        local row = hf.row_of(live)
        answers[i] = 'k'
        if job[7] == 'replace' and row[STATE] ~= 'x' then
            replace(i, row, job)
            answers[i] = 'r'
        end
        others[#others + 1], others[#others + 2] = i, live
    end
end
hf.in_pieces('HSET', BODIES, bodies, b)
hf.close()
return { concat(answers), others }
