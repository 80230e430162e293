-- groups: decide which jobs of a group are ready.

-- == script refill: the safety net. Fits one page of groups that have jobs waiting or in play to their limits, and
-- brings back one page of parked jobs whose task is no longer paused.
-- args: now, after, limit
-- raw: member
-- `after` is the place to continue after, `member` the same in the ready index, `limit` the page size.
-- Returns how many of the groups' jobs became ready, and where to continue in both: '' at the end.
-- Concurrency: a script runs alone.

if sealed then return hf.refused_sealed() end
local after, limit, member = args.after, args.limit, ARGV.member

-- The next places in an index, found by jumping from group to group.
local function places_after(key)
    local from, places = after ~= '' and '(' .. after .. '\255' or '-', {}
    for _ = 1, limit do
        local first = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)[1]
        if not first then break end
        local place = hf.place_in(first)
        if place then places[#places + 1] = place end
        from = place and '(' .. place .. '\255' or '(' .. first
    end
    return places
end

local waiting, playing, page, w, p = places_after(WAITING), places_after(PLAY), {}, 1, 1
while #page < limit and (waiting[w] or playing[p]) do
    local one, two = waiting[w], playing[p]
    local place = (not two or (one and hf.precedes(one, two))) and one or two
    if place == one then w = w + 1 end
    if place == two then p = p + 1 end
    page[#page + 1] = place
    hf.queue_at[place] = hf.plain(sub(place, 1, string.find(place, '\0', 1, true) - 1))
end
if call('EXISTS', QUARANTINE) == 1 then -- what was set aside may still hold the place of its group
    for _, place in ipairs(page) do hf.ready_of(place) end
end
local made = hf.refill(page)
hf.flush()

local members, at_end = hf.lane_members('2', '2', member, limit)
local ids = {}
for i, one in ipairs(members) do ids[i] = sub(one, string.find(one, '\0', 1, true) + 30) end
for _, row in ipairs(hf.rows_at('ready', READY, members, ids, 'r')) do
    if hf.lane_of(row) ~= row[LANE] % 4 then hf.change_lane(row) end
end
hf.close()
return { made, #page == limit and page[limit] or '', at_end and '' or members[#members] }

-- == part ready: how jobs become ready. A step that touches groups ends with refill_touched.

local STAGGER_TICKS, WEIGHED_LINE_MAX = 2592000000000, 1000
hf.moved = 0 -- jobs that refills of this script moved, beyond one for each group

-- Makes a job ready, with its previous turn or a new one; the caller has removed it from the index. `crowd`: how many
-- others of its group are ready, and the last of their turns; nil without a group or in a strict one.
function hf.become_ready(row, crowd)
    local aging = hf.rule_of(row[QUEUE])[RULE_AGING]
    local is_lifo = aging and aging < 0
    if is_lifo then aging = false end
    if not row[TURN] then
        local turn = hf.next_tick()
        if is_lifo and not row[GROUP] then turn = -turn end
        if aging then turn = turn - math.floor(row[PRIORITY] * aging * 1000000) end
        if row[GROUP] and hf.any('o') and not (crowd and crowd.number > 0) then turn = hf.weighted(row, turn, aging) end
        if crowd and crowd.number > 0 then turn = math.max(turn + crowd.number * STAGGER_TICKS, crowd.turn + 1) end
        if turn > TURN_ZERO or turn < -TURN_ZERO then turn = turn > 0 and TURN_ZERO or -TURN_ZERO end
        row[TURN] = turn
    end
    if crowd then crowd.number, crowd.turn = crowd.number + 1, math.max(crowd.turn, row[TURN]) end
    row[LANE] = hf.lane_of(row) + (aging and 4 or 0) + (crowd and 8 or 0)
    row[STATE] = 'r'
end

-- The turn of a job of a group with a weight (R106): formulas.ahead, formulas.weighted.
function hf.weighted(row, turn, aging)
    local weight = hf.weight_of(hf.place_of(row[QUEUE], row[GROUP]))
    if weight == 1 then return turn end
    hf.flush()
    local rank = hf.lane_prefix(row[QUEUE], 1) .. spack('>I4', RANK_ZERO - (aging and 0 or row[PRIORITY]))
    local low, high = '[' .. rank, '(' .. rank .. '\255'
    local line = call('ZLEXCOUNT', READY, low, high)
    local ahead = line > WEIGHED_LINE_MAX and 1 or math.max(1, math.floor(line / weight))
    if line <= ahead then return turn end
    local turns = {}
    for i, member in ipairs(call('ZRANGEBYLEX', READY, low, high, 'LIMIT', ahead - 1, 2)) do
        if #member < #rank + 8 then return turn end -- nothing of ours
        turns[i] = struct.unpack('>I8', member, #rank + 1) - TURN_ZERO
    end
    local before, behind = unpack(turns)
    if line > WEIGHED_LINE_MAX then return math.min(turn, before + math.floor((turn - before) / weight)) end
    return math.min(turn, before + math.floor((behind - before) / 2))
end

-- Makes a due job ready, or waiting in its group until refill; the caller has removed it from the index.
function hf.enter_play(row, was_in, had_key)
    if row[GROUP] then row[STATE] = 'w' else hf.become_ready(row) end
    hf.enter(row, was_in, had_key)
end

-- A job that waits leaves its place without being started: one with a lower order may come first now (R105).
function hf.touch_waited(row)
    if row[STATE] == 'w' then hf.touch(hf.place_of(row[QUEUE], row[GROUP]), true) end
end

function hf.ids_after(members, length)
    local ids = {}
    for i = 1, #members do ids[i] = sub(members[i], length + 1) end
    return ids
end

function hf.waiting_ids(members, length)
    local ids = {}
    for i = 1, #members do ids[i] = WAITING_ID(members[i], length) end
    return ids
end

-- Whether a job comes before another one of its group, both held or both not: formulas.place.
function hf.before(one, two)
    if one[PRIORITY] ~= two[PRIORITY] then return one[PRIORITY] > two[PRIORITY] end
    local first, second = hf.order_of(one), hf.order_of(two)
    if first == second then return one[SEQ] < two[SEQ] end
    return not first or second and first < second
end

function hf.refill_touched()
    while #hf.touched_order > 0 do -- a withdrawal touches its group once more; that second look moves nothing
        local places = hf.touched_order
        hf.touched, hf.touched_order = {}, {}
        hf.refill(places)
    end
end

-- == part refill: the limits in force for a group, and THE routine that refills it.
-- A group's jobs in play, and how many of them are ready, are counted from the indexes; there is no counter that could
-- drift.
-- Concurrency: a script runs alone, so what it counted still holds when it writes.
-- lazy: built when a script first uses one of its names.

local READY_PER_GROUP_MAX, ASIDE_MAX, MOVED_MAX = 256, 1000, 1000

function hf.strict(queue, group)
    local rule = hf.rule_of(queue)
    return IS_STRICT(rule, group, 1)
end

-- Whether a job of this group that dies at the end of its lease stops the group (R95).
function hf.stops(queue, group)
    return group and hf.rule_of(queue)[RULE_ON_DEAD] == 'stop' and hf.strict(queue, group) or false
end

-- Limit, rate and strictness of the group at a place.
function hf.group_of(place)
    local queue = hf.queue_at[place]
    local rule = hf.rule_of(queue)
    local limit, rate = hf.in_force('g' .. place, rule[RULE_GROUP_LIMIT], rule[RULE_GROUP_RATE])
    local strict = IS_STRICT(rule, place, #hf.escape(queue) + 1)
    if strict then limit = 1 end
    if hf.any('p') and hf.paused('g' .. place) then limit = 0 end
    return limit, rate, strict
end

-- Fits these groups to their limits and rates; returns how many jobs became ready. Groups beyond the bound are left for
-- later, because the server does nothing else meanwhile.
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
        if any_said or rule[RULE_GROUP_RATE] or rule[RULE_GROUP_ORDER] ~= 'strict' then
            limit, rate, strict = hf.group_of(place)
        end
        if rule[RULE_ORDER_WINDOW] or hf.ordered[place] then hf.make_way(place, limit, rate, strict, any_due) end
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
                chosen[n], members[n], at[n] = WAITING_ID(waiting[j], #place), waiting[j], place
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

-- leave and enter combined, for the most frequent step with groups: the member and place are already known, the key
-- stays held and the expiry stays listed.
function hf.ready_after_waiting(row, member, place)
    row[STATE] = 'r'
    hf.put(WAITING, member, false)
    hf.list_ready(row, '0')
    hf.put(PLAY, place .. row[ID], '0')
    hf.to_wake[row[QUEUE]] = true
    hf.changed[row[ID]] = row
end

-- == part relaxed_groups: what a refill needs for few groups: those with several ready jobs, with too many, or with due
-- jobs not yet promoted; and how a job changes lanes.
-- lazy: built when a script first uses one of its names.

local JOINING_MAX = 2000 -- due jobs of one group that join the waiting ones in one step

-- Moves a ready job to the lane where it now belongs.
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

-- The group's ready jobs, found among all it has in play. If those are too many, the group is not strict and staged
-- lists its ready jobs.
function hf.ready_of(place)
    local name, key, tail, ready = 'play', PLAY, 0, {}
    local low, high = '[' .. place, '(' .. place .. '\255'
    if call('ZLEXCOUNT', PLAY, low, high) > READY_PER_GROUP_MAX then name, key, tail = 'staged', STAGED, 8 end
    local members = call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, 2 * READY_PER_GROUP_MAX)
    for _, row in ipairs(hf.rows_at(name, key, members, hf.ids_after(members, #place + tail), 'rxsd')) do
        if row[STATE] == 'r' then ready[#ready + 1] = row end
    end
    return ready
end

-- Lets a group continue without the dead jobs that stop it. Returns whether there were any.
function hf.skip_dead(place)
    local members = call('ZRANGEBYLEX', PLAY, '[' .. place, '(' .. place .. '\255')
    local passed = false
    for _, row in ipairs(hf.rows_at('play', PLAY, members, hf.ids_after(members, #place), 'rxsd')) do
        if row[STATE] == 'd' then
            local was_in, had_key = hf.leave(row)
            row[HELD], passed = false, true
            hf.enter(row, was_in, had_key)
        end
    end
    return passed
end

-- A job that is due but not yet promoted must not be overtaken by a later one of its group.
function hf.join_due(place)
    local due = call('ZRANGEBYLEX', SCHEDULED, '[' .. place .. '1', '(' .. place .. '1' .. spack('>d', now) .. '\255',
        'LIMIT', 0, JOINING_MAX)
    local rows = hf.rows_at('scheduled', SCHEDULED, due, hf.ids_after(due, #place + 17), 's')
    for i = 1, #rows do hf.move_to(rows[i], 'w') end
    hf.moved = hf.moved + #rows
    if #rows > 0 then hf.flush() end
    return #rows > 0
end

-- If a group has more in play than its limit or rate allows, moves ready jobs back to waiting, last first. Returns how
-- many.
function hf.withdraw(place, surplus)
    local ready = hf.ready_of(place)
    table.sort(ready, function(one, two)
        if one[HELD] ~= two[HELD] then return two[HELD] end
        return hf.before(two, one)
    end)
    local number = math.min(surplus, #ready)
    for i = 1, number do hf.move_to(ready[i], 'w') end
    hf.moved = hf.moved + number
    return number
end

-- How many jobs of a group are ready. A strict group has few in play; for others, staged lists the ready jobs.
function hf.number_ready(place, strict)
    if strict then return #hf.ready_of(place) end
    return call('ZLEXCOUNT', STAGED, '[' .. place, '(' .. place .. '\255')
end

-- How many jobs of a group are ready, and the last of their turns.
function hf.crowd_of(place, ready)
    local last = 0
    if ready > 0 then
        local member = call('ZREVRANGEBYLEX', STAGED, '(' .. place .. '\255', '[' .. place, 'LIMIT', 0, 1)[1]
        if #member >= #place + 8 then last = struct.unpack('>I8', member, #place + 1) - TURN_ZERO end
    end
    return { number = ready, turn = last }
end

-- == part orders: jobs with an order before those of their group that come after them (R104, R105).
-- lazy: built when a script first uses one of its names.

local STAGED_LOOKS_MAX = 32 -- jobs that still wait for lower orders, looked at by one refill

local function precedes_any(row, others)
    for i = 1, #others do
        if hf.before(row, others[i]) and (row[PRIORITY] > others[i][PRIORITY] or hf.order_of(others[i])) then
            return true
        end
    end
end

-- Jobs that wait for lower orders go before one of their group that no longer does and has not started.
local function join_staged(place, window, ready)
    local last = call('ZREVRANGEBYLEX', WAITING, '(' .. place .. '1\255', '[' .. place .. '1', 'LIMIT', 0, 1)
    local unstarted = hf.rows_at('waiting', WAITING, last, hf.waiting_ids(last, #place), 'w')
    for _, row in ipairs(ready) do unstarted[#unstarted + 1] = not row[HELD] and row or nil end
    if #unstarted == 0 then return end
    local staged = call('ZRANGEBYLEX', ORDERED, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, STAGED_LOOKS_MAX)
    for _, row in ipairs(hf.rows_at('ordered', ORDERED, staged, hf.ids_after(staged, #place + 28), 's')) do
        if row[DUE_AT] <= now + window and precedes_any(row, unstarted) then
            hf.list(row, false)
            row[STATE] = 'w'
            hf.list(row, true)
            hf.changed[row[ID]], hf.moved = row, hf.moved + 1
        end
    end
    hf.flush()
end

-- Before a group is refilled. Due jobs join first, as in hf.refill; `any_due`: whether there are any at all.
function hf.make_way(place, limit, rate, strict, any_due)
    local low, high = '[' .. place, '(' .. place .. '\255'
    local window, ready = hf.rule_of(hf.queue_at[place])[RULE_ORDER_WINDOW], hf.ready_of(place)
    local free = limit - call('ZLEXCOUNT', PLAY, low, high)
    local room = free
    if rate then room = hf.room_by_rate(place, rate, free, #ready) end
    if room > 0 and any_due and call('ZLEXCOUNT', WAITING, low, high) > 0 then hf.join_due(place) end
    if limit > 0 and window and (free > 0 or #ready > 0) then join_staged(place, window, ready) end
    if limit ~= 1 or #ready == 0 then return end
    local first = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', 0, 1)
    local waiting = hf.rows_at('waiting', WAITING, first, hf.waiting_ids(first, #place), 'w')[1]
    for _, row in ipairs(ready) do
        if waiting and hf.order_of(waiting) and hf.order_of(row) and not row[HELD] and hf.before(waiting, row) then
            hf.move_to(row, 'w')
            hf.moved = hf.moved + 1
            break
        end
    end
    hf.flush()
end
