-- declare: store the rules of queues and tasks; the latest word wins. Where one changed, jobs go into their lanes and
-- groups are brought to it, as many as a rule's own step moves; the rest is left for later (parts/rearranging.lua).
-- Takes now, [name, rule] of queues and of tasks, each rule as parts/flow.lua reads it, false for a task that says
-- nothing; how many jobs and groups to move. Returns nothing.
-- Safe against a rival: a script runs alone; claims obey the rules as they stand from here on.

local step = args[4]
for _, one in ipairs(args[3]) do
    local name, packed = one[1], one[2] and cpack(one[2])
    local before = call('HGET', TASKS, name)
    if before ~= packed then
        if sealed then return hf.refused_sealed() end -- the rules before this one were not new
        local was, lane = hf.task_of(name), hf.lane_of_task(name)
        hf.use('t')
        if packed then call('HSET', TASKS, name, packed) else call('HDEL', TASKS, name) end
        hf.forget_rules()
        if hf.task_of(name)[4] and not was[4] then call('HSET', META, 'listing', '') end
        hf.lane_changed(name, lane, hf.lane_of_task(name))
        hf.stir_apart(name)
    end
end
for _, one in ipairs(args[2]) do
    local name, rule = one[1], one[2]
    local packed = cpack(rule)
    if call('HGET', RULES, name) ~= packed then
        if sealed then return hf.refused_sealed() end
        local was = hf.rule_of(name)
        call('HSET', RULES, name, packed)
        if was[1] ~= rule[1] or was[2] ~= rule[2] or cpack(was[5] or false) ~= cpack(rule[5]) then
            hf.leave_for_later('q' .. name)
        end
        hf.forget_rules()
        hf.stirred[name] = true
    end
end
hf.rearrange(step)
hf.close()
return { 1 }
