-- buckets: what rates let start. The arithmetic is that of rates.py, operation by operation, so that all stores answer
-- alike. A bucket is {spent_until, shut_until, wakes_at or false}, written at once.
-- Takes scopes: q and a queue, t and a task, g and a group's place.
-- seldom: built when a script first uses one of its names.

local SLACK_SHARE, ROUNDING = 0.01, 1e-6
hf.flow_memo = {}

-- The bucket, or false.
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
    -- one that is still to wake its group says something until it has
    call('ZADD', LAPSING, flow[3] and 'inf' or math.max(flow[1], flow[2]), scope)
    if flow[3] then
        call('ZADD', WAKING, flow[3], scope)
    elseif of_group then
        call('ZREM', WAKING, scope)
    end
end

-- Seconds that one start costs, and how far ahead of its even pace the bucket may be.
function hf.pace(rate)
    local count, seconds, burst = rate[1], rate[2], rate[3]
    if burst then return seconds / count, (burst - 1) * seconds / count end
    return seconds * (1.0 + SLACK_SHARE) / count, seconds * SLACK_SHARE
end

-- How many may start now.
function hf.allowed(rate, scope)
    local flow = hf.flow_of(scope)
    local every, slack = hf.pace(rate)
    local room = slack + ROUNDING - math.max((flow and flow[1] or 0) - now, 0.0)
    return room < 0 and 0 or math.floor(room / every) + 1
end

-- A bucket further ahead than its rate can have brought it by now: the rate was raised, or the clock set back.
function hf.set_back(rate, scope)
    local flow = hf.flow_of(scope)
    if not flow then return end
    local every, slack = hf.pace(rate)
    local empty = now + slack + every
    if flow[1] > empty + every then
        flow[1] = empty
        hf.keep_flow(scope, flow)
    end
end

-- Remembers when its rate lets one more of the group's waiting jobs start, or that nothing waits for that. `ready`: how
-- many are, where only the rate holds others back.
function hf.wake_later(place, rate, ready)
    local flow = hf.flow_of('g' .. place)
    if not flow then return end
    local wakes_at = false
    if ready and flow[1] > now then
        local every, slack = hf.pace(rate)
        wakes_at = flow[1] - slack + ready * every
    end
    if wakes_at ~= flow[3] then
        flow[3] = wakes_at
        hf.keep_flow('g' .. place, flow)
    end
end

-- Brings a group to its rate, too. Takes and answers the room that its limit leaves, and how many are ready.
function hf.room_by_rate(place, rate, room, ready)
    if ready > 0 or call('ZLEXCOUNT', WAITING, '[' .. place, '(' .. place .. '\255') > 0 then
        hf.set_back(rate, 'g' .. place)
    end
    return math.min(room, hf.allowed(rate, 'g' .. place) - ready)
end

-- Groups whose rate lets the next job start by now.
function hf.wake_groups(limit)
    for _, scope in ipairs(call('ZRANGEBYSCORE', WAKING, '-inf', now, 'LIMIT', 0, limit)) do
        local flow, place = hf.flow_of(scope), sub(scope, 2)
        local ends = string.find(place, '\0', 1, true)
        if flow and ends then
            flow[3] = false
            hf.keep_flow(scope, flow)
            hf.queue_at[place] = hf.plain(sub(place, 1, ends - 1))
            hf.refill({ place })
            if hf.moved >= limit then return end
        else
            hf.set_aside('waking', WAKING, scope)
        end
    end
end
