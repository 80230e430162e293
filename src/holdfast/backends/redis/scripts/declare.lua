-- declare: store the rules of queues and tasks; the latest word wins. Where one changed, groups are brought to it and
-- jobs into their lanes by refill, page by page; claim passes over those not yet moved.
-- Takes now, [name, rule] of queues and of tasks, each rule as parts/flow.lua reads it, false for a task that says
-- nothing.
-- Returns the queues whose rule changed, those of them whose groups may have several jobs ready from now on, and
-- whether a task went into a lane of its own, and whether one left it.

local changed, opened, into, out_of = {}, {}, 0, 0
for _, one in ipairs(args[3]) do
    local name, packed = one[1], one[2] and cpack(one[2])
    local before = call('HGET', TASKS, name)
    if before ~= packed then
        if sealed then return hf.refused_sealed() end -- the rules before this one were not new
        local was = hf.task_of(name)
        hf.use('t')
        if packed then call('HSET', TASKS, name, packed) else call('HDEL', TASKS, name) end
        hf.task_memo = {}
        local is = hf.task_of(name)
        if is[3] and not was[3] then into = 1 elseif was[3] and not is[3] then out_of = 1 end
        if is[4] and not was[4] then call('HSET', META, 'listing', '') end
        hf.stir_apart(name)
    end
end
for _, one in ipairs(args[2]) do
    local name, packed = one[1], cpack(one[2])
    if call('HGET', RULES, name) ~= packed then
        if sealed then return hf.refused_sealed() end
        if one[2][2] ~= 'strict' and hf.rule_of(name)[2] == 'strict' then opened[#opened + 1] = name end
        call('HSET', RULES, name, packed)
        changed[#changed + 1] = name
        hf.stirred[name] = true
    end
end
hf.tell_sleepers()
return { changed, opened, into, out_of }
