-- producing: new jobs are stored, all in one step. enqueue and tick share it.
-- Takes jobs as [id, task, queue, priority, group, key, on_conflict, delay, due_at, expires, max_stalls, terms];
-- `terms` as in a record, with wait_max in the place of due_max, or nil. `first` is the place of the first one's body
-- in ARGV.
-- Numbering: step and rest of the seqs given here, and what seqs and ticks are above (numbering.py).
-- Safe against a rival: a script runs alone; duplicates are refused before anything is written.

local SEQ_EPOCH = 1577836800

-- The ids that are there already, and whether any of the jobs has a key.
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

-- Answers one letter per job (c created, k kept, r replaced) and the ids answered in place of those given; or, where
-- one may not share its key, nothing and the refusal.
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
            -- above the last one; of several shards each has a rest of its own, so that no two give the same
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
