-- busy: how many jobs of each queue and task run, and who is told when one of them ends.
-- seldom: built when a script first uses one of its names.

hf.freed_are_told = false

-- Where a lease ended that took a place of a limited queue or task, others may now start. Told once: a claim in the
-- same script takes back what it found claimed by itself.
function hf.stir_freed()
    if hf.freed_are_told then return end
    hf.freed_are_told = true
    for queue in pairs(hf.ended_of) do
        if hf.rule_of(queue).limit < UNLIMITED then hf.stirred[queue] = true end
    end
    for task in pairs(hf.ended_for) do
        if hf.task_of(task)[1] < UNLIMITED then hf.stir_apart(task) end
    end
end

-- How many jobs of each queue and task run, changed by what ended and began here.
function hf.save_busy()
    hf.stir_freed()
    local changes = {}
    for name, number in pairs(hf.begun_of) do changes['q' .. name] = number end
    for name, number in pairs(hf.begun_for) do changes['t' .. name] = number end
    for name, number in pairs(hf.ended_of) do changes['q' .. name] = (changes['q' .. name] or 0) - number end
    for name, number in pairs(hf.ended_for) do changes['t' .. name] = (changes['t' .. name] or 0) - number end
    for scope, number in pairs(changes) do
        local left = number == 0 or redis.pcall('HINCRBY', BUSY, scope, number)
        if type(left) == 'table' or left ~= true and (left < 0 or left >= UNLIMITED) then -- it was no number of jobs
            left = hf.busy_numbers()[scope] or 0
            call('HSET', BUSY, scope, left)
        end
        if left == 0 then call('HDEL', BUSY, scope) end
    end
    hf.begun_of, hf.begun_for, hf.ended_of, hf.ended_for = {}, {}, {}, {}
end
