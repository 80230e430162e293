-- crowding: what a refill needs of few groups: those with several ready jobs, with too many, with due ones that nobody
-- promoted; and how a job changes its lane.
-- seldom: built when a script first uses one of its names.

local JOINING_MAX = 2000 -- due jobs of one group that join the waiting ones in one step

-- A ready job goes where it now belongs.
function hf.change_lane(row)
    local was_in, had_key = hf.leave(row)
    row[LANE] = row[LANE] - row[LANE] % 4 + hf.lane_of(row)
    hf.enter(row, was_in, had_key)
end

function hf.move_to(row, state)
    local was_in, had_key = hf.leave(row)
    row[STATE] = state
    hf.enter(row, was_in, had_key)
end

-- The group's ready jobs, by going through all it has in play. Where that is much, it never had but one ready and all
-- that are ready are listed.
function hf.ready_of(place)
    local name, key, tail, ready = 'play', PLAY, 0, {}
    local low, high = '[' .. place, '(' .. place .. '\255'
    if call('ZLEXCOUNT', PLAY, low, high) > READY_PER_GROUP_MAX then name, key, tail = 'staged', STAGED, 8 end
    local members = call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, 2 * READY_PER_GROUP_MAX)
    for _, row in ipairs(hf.rows_at(name, key, members, hf.ids_after(members, #place + tail), 'rxs')) do
        if row[STATE] == 'r' then ready[#ready + 1] = row end
    end
    return ready
end

-- Who is due but not yet promoted must not be overtaken by a later one of its group.
function hf.join_due(place)
    local due = call('ZRANGEBYLEX', SCHEDULED, '[' .. place .. '1', '(' .. place .. '1' .. spack('>d', now) .. '\255',
        'LIMIT', 0, JOINING_MAX)
    local rows = hf.rows_at('scheduled', SCHEDULED, due, hf.ids_after(due, #place + 17), 's')
    for i = 1, #rows do hf.move_to(rows[i], 'w') end
    hf.moved = hf.moved + #rows
    if #rows > 0 then hf.flush() end
    return #rows > 0
end

-- Where a group has more in play than its limit or its rate allows, those that are only ready step back, the last
-- first.
-- Answers how many.
function hf.withdraw(place, surplus)
    local ready = hf.ready_of(place)
    table.sort(ready, function(one, two)
        if one[HELD] ~= two[HELD] then return two[HELD] end
        if one[PRIORITY] ~= two[PRIORITY] then return one[PRIORITY] < two[PRIORITY] end
        return one[SEQ] > two[SEQ]
    end)
    local number = math.min(surplus, #ready)
    for i = 1, number do hf.move_to(ready[i], 'w') end
    hf.moved = hf.moved + number
    return number
end

-- How many of a group are ready. A strict one has few in play; of others those that are ready are listed.
function hf.number_ready(place, strict)
    if strict then return #hf.ready_of(place) end
    return call('ZLEXCOUNT', STAGED, '[' .. place, '(' .. place .. '\255')
end

-- How many of a group are ready, and the last of their turns.
function hf.crowd_of(place, ready)
    local last = 0
    if ready > 0 then
        local member = call('ZREVRANGEBYLEX', STAGED, '(' .. place .. '\255', '[' .. place, 'LIMIT', 0, 1)[1]
        if #member >= #place + 8 then last = struct.unpack('>I8', member, #place + 1) - TURN_ZERO end
    end
    return { ready, last }
end
