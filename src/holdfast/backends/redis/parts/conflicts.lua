-- conflicts: new jobs whose key another job holds, or whose id was there. Takes jobs as producing does.
-- seldom: built when a script first uses one of its names.

-- Was there a job of this id that gave way to others, and is it to be known still?
function hf.is_remembered(id)
    local ends = call('ZSCORE', REMEMBERED, id)
    return ends and tonumber(ends) > now
end

-- What the key of a new job is kept under, as hf.key_name says it of a stored one.
function hf.new_key_name(job)
    if job[12] and job[12][1] then return 'g' .. hf.escape(job[2]) .. job[6] end
    return 'k' .. hf.escape(job[3]) .. hf.escape(job[2]) .. job[6]
end

-- The first job that may not share its key and the one that has it, looking also at those before it in the batch.
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

-- Gives an unstarted job the call of a newer one of its key; id, seq and due_max stay, its turn if nothing is against.
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
