-- refilling: what is in force for a group, and THE routine that refills it.
-- What a group has in play, and how many of it are ready, is counted off the indexes; no counter exists that could
-- drift.
-- Safe against a rival: a script runs alone, so what it counted still holds when it writes.
-- seldom: built when a script first uses one of its names.

local READY_PER_GROUP_MAX, ASIDE_MAX, MOVED_MAX = 256, 1000, 1000

function hf.strict(queue, group)
    return hf.rule_of(queue)[2] == 'strict' or sub(group, 1, #SERIAL_PREFIX) == SERIAL_PREFIX
end

-- Limit, rate and strictness of the group at a place.
function hf.group_of(place)
    local queue = hf.queue_at[place]
    local rule = hf.rule_of(queue)
    local limit, rate = rule[1], rule[5] and rule[5][1] < UNLIMITED and rule[5]
    if hf.any('o') then limit, rate = hf.in_force('g' .. place, rule[1], rule[5]) end
    local strict = rule[2] == 'strict' or sub(place, #hf.escape(queue) + 1, #hf.escape(queue) + 14) == SERIAL_PREFIX
    if strict then limit = 1 end
    if hf.any('p') and hf.paused('g' .. place) then limit = 0 end
    return limit, rate, strict
end

-- Brings these groups to their limits and rates; answers how many jobs became ready. Those it has no time for are left
-- for later: the server does nothing else meanwhile.
function hf.refill(places)
    hf.flush()
    local any_due = call('ZCOUNT', DUE, '-inf', now) > 0
    local any_flow, any_said = hf.any('g'), hf.any('o') or hf.any('p')
    local chosen, members, at, crowds, n = {}, {}, {}, {}, 0
    for i = 1, #places do
        local place = places[i]
        if hf.moved + n - i >= MOVED_MAX then -- one job of each group is what the call is about
            for j = i, #places do hf.leave_for_later('g' .. places[j]) end
            break
        end
        local low, high = '[' .. place, '(' .. place .. '\255'
        local rule = hf.rule_of(hf.queue_at[place])
        local limit, rate, strict = 1, false, true -- as it is with almost all
        if any_said or rule[5] or rule[2] ~= 'strict' then limit, rate, strict = hf.group_of(place) end
        local free = limit - call('ZLEXCOUNT', PLAY, low, high)
        local room, ready, made = free, 0, 0
        if rate or (room > 0 and not strict) then ready = hf.number_ready(place, strict) end
        if rate then room = hf.room_by_rate(place, rate, room, ready) end
        if room > 0 then
            local fill = math.min(room, READY_PER_GROUP_MAX - ready)
            local waiting = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0', math.max(fill, 1))
            if #waiting > 0 and any_due and hf.join_due(place) then
                waiting = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0', math.max(fill, 1))
            end
            made = math.min(#waiting, fill)
            if made > 0 and not strict then crowds[place] = hf.crowd_of(place, ready) end
            for j = 1, made do
                n = n + 1
                chosen[n], members[n], at[n] = sub(waiting[j], #place + 14), waiting[j], place
            end
        elseif room < 0 then
            made = -hf.withdraw(place, -room)
        end
        if rate then
            ready = ready + made
            local held_back = free > made and ready < READY_PER_GROUP_MAX and hf.allowed(rate, 'g' .. place) <= ready
                and call('ZLEXCOUNT', WAITING, low, high) > made
            hf.wake_later(place, rate, held_back and ready)
        elseif any_flow then
            hf.wake_later(place)
        end
    end
    hf.load_rows(chosen)
    local number = 0
    for i = 1, n do
        local row = hf.cache[chosen[i]]
        if row and row[STATE] == 'w' then
            hf.become_ready(row, crowds[at[i]])
            hf.ready_after_waiting(row, members[i], at[i])
            number = number + 1
        else
            hf.set_aside('waiting', WAITING, members[i], row)
            if hf.number_aside < ASIDE_MAX then hf.touch(at[i]) end -- another one may take its place
        end
    end
    hf.moved = hf.moved + math.max(0, number - #places)
    return number
end

-- leave and enter in one, for the step most often taken with groups: its member and place are known already, its key
-- stays held and its expiry stays listed.
function hf.ready_after_waiting(row, member, place)
    row[STATE] = 'r'
    hf.put(WAITING, member, false)
    hf.list_ready(row, '0')
    hf.put(PLAY, place .. row[ID], '0')
    hf.stirred[row[QUEUE]] = true
    hf.changed[row[ID]] = row
end
