-- refilling: limits, lanes, and THE routine that refills a group. A step that touched groups ends with refill_touched.
-- What a group has in play is counted off the index of jobs in play; no counter exists that could drift.
-- Safe against a rival: a script runs alone, so what it counted still holds when it writes.

local JOINING_MAX = 2000 -- due jobs of one group that join the waiting ones in one step
hf.pause_memo, hf.rule_memo, hf.any_pause, hf.any_override = {}, {}, nil, nil

function hf.any_pauses()
    if hf.any_pause == nil then hf.any_pause = call('HLEN', PAUSES) > 0 end
    return hf.any_pause
end

function hf.paused(name)
    if not hf.any_pauses() then return false end
    if hf.pause_memo[name] == nil then hf.pause_memo[name] = call('HEXISTS', PAUSES, name) == 1 end
    return hf.pause_memo[name]
end

-- {limit, order} of a queue; an undeclared one is strict.
function hf.rule_of(queue)
    local rule = hf.rule_memo[queue]
    if not rule then
        local packed = call('HGET', RULES, queue)
        rule = packed and cunpack(packed) or { 1, 'strict' }
        hf.rule_memo[queue] = rule
    end
    return rule
end

function hf.strict(queue) return hf.rule_of(queue)[2] == 'strict' end

function hf.limit_of(place)
    if hf.any_pauses() and hf.paused('g' .. place) then return 0 end
    local rule = hf.rule_of(hf.queue_at[place])
    if rule[2] == 'strict' then return 1 end
    if hf.any_override == nil then hf.any_override = call('HLEN', OVERRIDES) > 0 end
    return hf.any_override and tonumber(call('HGET', OVERRIDES, place)) or rule[1]
end

function hf.lane_of(row)
    if hf.any_pauses() and hf.paused('t' .. row[TASK]) then return 2 end
    return row[GROUP] and 1 or 0
end

function hf.make_ready(row)
    local was_in, was_live = hf.leave(row)
    row[TURN] = row[TURN] or hf.next_tick()
    row[LANE] = hf.lane_of(row)
    row[STATE] = 'r'
    hf.enter(row, was_in, was_live)
end

-- Brings a due job, which its caller took out of the index, into play: ready, or behind its group until refill.
function hf.enter_play(row, was_in, was_live)
    if row[GROUP] then
        row[STATE] = 'w'
    else
        row[TURN] = row[TURN] or hf.next_tick()
        row[LANE] = hf.lane_of(row)
        row[STATE] = 'r'
    end
    hf.enter(row, was_in, was_live)
end

function hf.move_to(row, state)
    local was_in, was_live = hf.leave(row)
    row[STATE] = state
    hf.enter(row, was_in, was_live)
end

function hf.ids_after(members, length)
    local ids = {}
    for i = 1, #members do ids[i] = sub(members[i], length + 1) end
    return ids
end

-- Who is due but not yet promoted must not be overtaken by a later one of its group.
function hf.join_due(place)
    local due = call('ZRANGEBYLEX', SCHEDULED, '[' .. place .. '1', '(' .. place .. '1' .. spack('>d', now) .. '\255',
        'LIMIT', 0, JOINING_MAX)
    local ids = hf.ids_after(due, #place + 17)
    hf.load_rows(ids)
    for i = 1, #ids do hf.move_to(hf.cache[ids[i]], 'w') end
    if #ids > 0 then hf.flush() end
    return #ids > 0
end

-- Where a group has more in play than its limit allows, those that are only ready step back, the last first.
function hf.withdraw(place, surplus)
    local ids = hf.ids_after(call('ZRANGEBYLEX', PLAY, '[' .. place, '(' .. place .. '\255'), #place)
    hf.load_rows(ids)
    local ready = {}
    for i = 1, #ids do
        local row = hf.cache[ids[i]]
        if row[STATE] == 'r' then ready[#ready + 1] = row end
    end
    table.sort(ready, function(one, two)
        if one[HELD] ~= two[HELD] then return two[HELD] end
        if one[PRIORITY] ~= two[PRIORITY] then return one[PRIORITY] < two[PRIORITY] end
        return one[SEQ] > two[SEQ]
    end)
    for i = 1, math.min(surplus, #ready) do hf.move_to(ready[i], 'w') end
end

-- Brings these groups to their limits; answers how many jobs became ready.
function hf.refill(places)
    hf.flush()
    local any_due = call('ZCOUNT', DUE, '-inf', now) > 0
    local chosen, members, at, n = {}, {}, {}, 0
    for i = 1, #places do
        local place = places[i]
        local low, high = '[' .. place, '(' .. place .. '\255'
        local room = hf.limit_of(place) - call('ZLEXCOUNT', PLAY, low, high)
        if room > 0 then
            local waiting = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0', room)
            if #waiting > 0 and any_due and hf.join_due(place) then
                waiting = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0', room)
            end
            for j = 1, #waiting do
                n = n + 1
                chosen[n], members[n], at[n] = sub(waiting[j], #place + 14), waiting[j], place
            end
        elseif room < 0 then
            hf.withdraw(place, -room)
        end
    end
    hf.load_rows(chosen)
    for i = 1, n do
        local row = hf.cache[chosen[i]]
        row[TURN], row[LANE] = row[TURN] or hf.next_tick(), hf.lane_of(row)
        hf.ready_after_waiting(row, members[i], at[i])
    end
    return n
end

function hf.refill_touched()
    while #hf.touched_order > 0 do -- a withdrawal touches its group once more; that second look moves nothing
        local places = hf.touched_order
        hf.touched, hf.touched_order = {}, {}
        hf.refill(places)
    end
end
