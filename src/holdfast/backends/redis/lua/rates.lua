-- rates: what rates (GCRA) and limits allow to start, and when more may start.

-- == part buckets: what rates allow to start (GCRA). The arithmetic is that of rates.py, operation by operation, so
-- that all stores return the same. A rate's state is {spent_until (TAT), shut_until (slow-down), wakes_at or false},
-- written at once. Takes scopes: q and a queue, t and a task, g and a group's place.
-- lazy: built when a script first uses one of its names.

local SLACK_SHARE, ROUNDING = 0.01, 1e-6
hf.flow_memo = {}

-- The rate's state, or false.
function hf.flow_of(scope)
    local flow = hf.flow_memo[scope]
    if flow == nil then
        local of_group = byte(scope) == 103
        local packed = hf.any(of_group and 'g' or 'f') and call('HGET', of_group and GROUP_FLOWS or FLOWS, scope)
        flow = packed and hf.sound_flow(hf.read(packed))
        hf.flow_memo[scope] = flow
    end
    return flow
end

function hf.keep_flow(scope, flow)
    local of_group = byte(scope) == 103
    hf.use(of_group and 'g' or 'f')
    hf.flow_memo[scope] = flow
    call('HSET', of_group and GROUP_FLOWS or FLOWS, scope, cpack(flow))
    -- A state that still has to wake its group does not lapse before it has.
    local wakes_at = flow[FLOW_WAKES_AT]
    call('ZADD', LAPSING, wakes_at and 'inf' or math.max(flow[FLOW_SPENT_UNTIL], flow[FLOW_SHUT_UNTIL]), scope)
    if wakes_at then
        call('ZADD', WAKING, wakes_at, scope)
    elseif of_group then
        call('ZREM', WAKING, scope)
    end
end

-- The emission interval, in seconds per start, and the tolerance (GCRA).
function hf.pace(rate)
    local count, seconds, burst = rate[RATE_COUNT], rate[RATE_SECONDS], rate[RATE_BURST]
    if burst then return seconds / count, (burst - 1) * seconds / count end
    return seconds * (1.0 + SLACK_SHARE) / count, seconds * SLACK_SHARE
end

-- How many may start now.
function hf.allowed(rate, scope)
    local flow = hf.flow_of(scope)
    local every, slack = hf.pace(rate)
    local room = slack + ROUNDING - math.max((flow and flow[FLOW_SPENT_UNTIL] or 0) - now, 0.0)
    return room < 0 and 0 or math.floor(room / every) + 1
end

-- Pulls back a TAT that this rate cannot have reached by now: the rate was raised, or the clock was set back.
function hf.pull_back(rate, scope)
    local flow = hf.flow_of(scope)
    if not flow then return end
    local every, slack = hf.pace(rate)
    local empty = now + slack + every
    if flow[FLOW_SPENT_UNTIL] > empty + every then
        flow[FLOW_SPENT_UNTIL] = empty
        hf.keep_flow(scope, flow)
    end
end

-- Records when the rate lets one more of the group's waiting jobs start, or that none waits for it. `ready`: how many
-- jobs are ready, if only the rate holds others back; else false.
function hf.wake_later(place, rate, ready)
    local flow = hf.flow_of('g' .. place)
    if not flow then return end
    local wakes_at = false
    if ready and flow[FLOW_SPENT_UNTIL] > now then
        local every, slack = hf.pace(rate)
        wakes_at = flow[FLOW_SPENT_UNTIL] - slack + ready * every
    end
    if wakes_at ~= flow[FLOW_WAKES_AT] then
        flow[FLOW_WAKES_AT] = wakes_at
        hf.keep_flow('g' .. place, flow)
    end
end

-- Applies a group's rate, too. Takes the room its limit leaves and how many are ready; returns the room that remains.
function hf.room_by_rate(place, rate, room, ready)
    if ready > 0 or call('ZLEXCOUNT', WAITING, '[' .. place, '(' .. place .. '\255') > 0 then
        hf.pull_back(rate, 'g' .. place)
    end
    return math.min(room, hf.allowed(rate, 'g' .. place) - ready)
end

-- Refills groups whose rate lets the next job start by now.
function hf.wake_groups(limit)
    for _, scope in ipairs(call('ZRANGEBYSCORE', WAKING, '-inf', now, 'LIMIT', 0, limit)) do
        local flow, place = hf.flow_of(scope), sub(scope, 2)
        local ends = string.find(place, '\0', 1, true)
        if flow and ends then
            flow[FLOW_WAKES_AT] = false
            hf.keep_flow(scope, flow)
            hf.queue_at[place] = hf.plain(sub(place, 1, ends - 1))
            hf.refill({ place })
            if hf.moved >= limit then return end
        else
            hf.set_aside('waking', WAKING, scope)
        end
    end
end

-- == part capacity: how many jobs of a queue or task may start now by limits, rates, slow-downs and pauses, and when
-- more may. Shared by claim and wait_for_work. Never writes; reads indexes, so the caller must have flushed.
-- lazy: built when a script first uses one of its names.

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

-- How many jobs of the queue may start; 0 while it is paused or slowed down.
function hf.queue_room(queue)
    local scope, rule = 'q' .. queue, hf.rule_of(queue)
    local flow = hf.flow_of(scope)
    if hf.paused(scope) or (flow and flow[FLOW_SHUT_UNTIL] > now) then return 0 end
    return hf.room_of(scope, rule.limit, rule.rate)
end

-- The tasks with ready jobs in the queue's dedicated lanes, by name, each with its place: the prefix of its members.
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
            found[#found + 1] = { task = hf.plain(sub(place, #prefix + 1, -2)), place = place }
            from = '(' .. place .. '\255'
        else
            from = '(' .. first -- nothing of ours
        end
    end
    return found
end

-- Whether a queue has ready jobs in its lanes 0 and 1.
function hf.any_ready(queue)
    local prefix = hf.escape(queue)
    return #call('ZRANGEBYLEX', READY, '[' .. prefix .. '0', '(' .. prefix .. '2', 'LIMIT', 0, 1) > 0
end

-- Until when its rate or a slow-down holds it back; nil if none does.
function hf.shut_until(scope, rate)
    local flow = hf.flow_of(scope)
    if not flow then return nil end
    local ends = flow[FLOW_SHUT_UNTIL]
    if rate and hf.allowed(rate, scope) == 0 then
        local _, slack = hf.pace(rate)
        ends = math.max(ends, flow[FLOW_SPENT_UNTIL] - slack)
    end
    return ends > now and ends or nil
end

-- When the first rate or slow-down that holds back ready jobs of these queues lets one more start; nil if none does.
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
            for _, one in ipairs(apart) do note(hf.shut_until('t' .. one.task, hf.task_of(one.task)[TASK_RATE])) end
        end
    end
    return first
end

-- Wakes the queues in which a task has ready jobs in its dedicated lane.
function hf.wake_lane(task)
    hf.each_queue(APART, '', function(prefix, queue)
        local place = prefix .. hf.escape(task)
        if call('ZLEXCOUNT', APART, '[' .. place, '(' .. place .. '\255') > 0 then hf.to_wake[queue] = true end
    end)
end

-- == script slow_down: start nothing from a queue for some seconds. Never shortens an earlier slow-down.
-- args: now, queue, seconds
-- Returns until when. Concurrency: a script runs alone.

if sealed then return hf.refused_sealed() end
local scope = 'q' .. args.queue
local flow = hf.flow_of(scope) or { 0, 0, false }
flow[FLOW_SHUT_UNTIL] = math.max(flow[FLOW_SHUT_UNTIL], now + args.seconds)
hf.keep_flow(scope, flow)
return { format('%.17g', flow[FLOW_SHUT_UNTIL]) }
