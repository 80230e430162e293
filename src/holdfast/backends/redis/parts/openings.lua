-- openings: what limits, rates, slow-downs and pauses let start of a queue or a task now, and when more may. Claim and
-- whoever waits for work share it. Never writes; reads indexes, so its caller has flushed.
-- seldom: built when a script first uses one of its names.

local TASKS_SEEN_MAX = 5000

-- How many jobs of a queue (q) or task (t) run.
function hf.running(scope)
    local name = sub(scope, 2)
    local began, ended = hf.begun_for, hf.ended_for
    if byte(scope) == 113 then began, ended = hf.begun_of, hf.ended_of end
    local number, change = call('HGET', BUSY, scope), (began[name] or 0) - (ended[name] or 0)
    if not number then return change end
    number = tonumber(number)
    if not hf.is_count(number) then number = hf.recount(scope, change) end
    return number + change
end

function hf.room_of(scope, limit, rate)
    local room = UNLIMITED
    if limit < UNLIMITED then room = limit - hf.running(scope) end
    if rate then room = math.min(room, hf.allowed(rate, scope)) end
    return room
end

-- 0 while it is paused or slowed down.
function hf.queue_room(queue)
    local scope, rule = 'q' .. queue, hf.rule_of(queue)
    local flow = hf.flow_of(scope)
    if hf.paused(scope) or (flow and flow[2] > now) then return 0 end
    return hf.room_of(scope, rule.limit, rule.rate)
end

-- The tasks apart that have ready jobs in a queue, by name, each with the beginning of its members.
function hf.tasks_apart(queue)
    local found = {}
    local prefix = hf.escape(queue)
    local from, upper = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'
    for _ = 1, TASKS_SEEN_MAX do
        local first = call('ZRANGEBYLEX', APART, from, upper, 'LIMIT', 0, 1)[1]
        if not first then return found end
        local ends = string.find(first, '\0', #prefix + 1, true)
        if ends then
            local place = sub(first, 1, ends)
            found[#found + 1] = { hf.plain(sub(place, #prefix + 1, -2)), place }
            from = '(' .. place .. '\255'
        else
            from = '(' .. first -- nothing of ours
        end
    end
    return found
end

-- Has a queue ready jobs in its lanes 0 and 1?
function hf.any_ready(queue)
    local prefix = hf.escape(queue)
    return #call('ZRANGEBYLEX', READY, '[' .. prefix .. '0', '(' .. prefix .. '2', 'LIMIT', 0, 1) > 0
end

-- Until when its bucket or a slow-down holds it back; nil where none does.
function hf.shut_until(scope, rate)
    local flow = hf.flow_of(scope)
    if not flow then return nil end
    local ends = flow[2]
    if rate and hf.allowed(rate, scope) == 0 then
        local _, slack = hf.pace(rate)
        ends = math.max(ends, flow[1] - slack)
    end
    return ends > now and ends or nil
end

-- When the first bucket or slow-down that holds ready jobs of these queues back lets one more start; nil: none does.
function hf.opens_at(queues)
    if not hf.any('f') then return nil end
    local first
    local function note(ends)
        if ends and (not first or ends < first) then first = ends end
    end
    for _, queue in ipairs(queues) do
        local apart = hf.tasks_apart(queue)
        if not hf.paused('q' .. queue) and (#apart > 0 or hf.any_ready(queue)) then
            note(hf.shut_until('q' .. queue, hf.rule_of(queue).rate))
            for _, one in ipairs(apart) do note(hf.shut_until('t' .. one[1], hf.task_of(one[1])[2])) end
        end
    end
    return first
end

-- Queues in which a task apart has ready jobs.
function hf.stir_apart(task)
    hf.each_queue(APART, '', function(prefix, queue)
        local place = prefix .. hf.escape(task)
        if call('ZLEXCOUNT', APART, '[' .. place, '(' .. place .. '\255') > 0 then hf.stirred[queue] = true end
    end)
end
