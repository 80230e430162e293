-- groups: groups with unfinished jobs, an override or a pause, by queue and name.
-- Takes now, queue or nil, the place to go on after, how many, one group's name or nil, and the places that
-- follow of groups with an override or a pause: more of them than are asked for. Never writes.
-- Returns packed lines: place, limit, override, order, pause, number of scheduled, waiting, ready, running jobs, head,
-- rate, rate an operator said, bucket.

-- Records looked at in all, of one group's scheduled jobs, and of what it has in play; beyond, a head is the first of
-- those seen, and what runs is what is in play and neither ready nor scheduled.
local SEEN_MAX_IN_ALL, SCHEDULED_SEEN_MAX, PLAY_SEEN_MAX = 5000, 1000, 64
local unseen = SEEN_MAX_IN_ALL
local within, after, most, name = args[2], args[3], args[4], args[5]
local places, known = {}, {}
local low, high = '-', '+'
if within then low, high = '[' .. hf.escape(within), '(' .. sub(hf.escape(within), 1, -2) .. '\1' end

local function note(place)
    local is_within = not within or sub(place, 1, #hf.escape(within)) == hf.escape(within)
    if not known[place] and hf.precedes(after, place) and is_within and sub(place, -3) ~= '\0\1\0' then
        known[place] = true
        places[#places + 1] = place
        hf.queue_at[place] = hf.plain(sub(place, 1, string.find(place, '\0', 1, true) - 1))
    end
end

local function places_in(key)
    local from, found = after ~= '' and '(' .. after .. '\255' or low, 0
    while found < most + 1 do
        local first = call('ZRANGEBYLEX', key, from, high, 'LIMIT', 0, 1)[1]
        if not first then return end
        local place = hf.place_in(first)
        if place then note(place) end
        found = found + 1
        from = place and '(' .. place .. '\255' or '(' .. first
    end
end

if name then
    places[1] = hf.place_of(within, name)
else
    for _, key in ipairs({ WAITING, PLAY, SCHEDULED }) do places_in(key) end
    for _, place in ipairs(args[6]) do note(place) end
    table.sort(places, hf.precedes)
end

local function rows_of(key, place, tail, limit)
    limit = math.max(1, math.min(limit, unseen))
    local found = call('ZRANGEBYLEX', key, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, limit)
    unseen = unseen - #found
    local ids, rows = hf.ids_after(found, #place + tail), {}
    hf.load_rows(ids)
    for _, id in ipairs(ids) do
        if hf.cache[id] then rows[#rows + 1] = hf.cache[id] end
    end
    return rows
end

local function first_of(rows, state, held)
    local first
    for _, row in ipairs(rows) do
        if row[STATE] == state and (held == nil or row[HELD] == held) then
            local sooner = first and (row[PRIORITY] > first[PRIORITY]
                or (row[PRIORITY] == first[PRIORITY] and row[SEQ] < first[SEQ]))
            if not first or sooner then first = row end
        end
    end
    return first
end

local lines = {}
for i = 1, math.min(most, #places) do
    local place = places[i]
    local playing = rows_of(PLAY, place, 0, PLAY_SEEN_MAX)
    local numbers = { r = 0, x = 0 }
    for _, row in ipairs(playing) do numbers[row[STATE]] = (numbers[row[STATE]] or 0) + 1 end
    local range = { '[' .. place, '(' .. place .. '\255' }
    local in_play = call('ZLEXCOUNT', PLAY, range[1], range[2])
    if in_play > #playing then
        numbers.r = call('ZLEXCOUNT', STAGED, range[1], range[2])
        numbers.x = in_play - numbers.r - call('ZLEXCOUNT', SCHEDULED, range[1], '(' .. place .. '1')
    end
    local head = first_of(playing, 'x') or first_of(playing, 'r') or first_of(playing, 's')
    local waiting = call('ZLEXCOUNT', WAITING, range[1], range[2])
    if not head and waiting > 0 then head = rows_of(WAITING, place, 13, 1)[1] end
    local scheduled = call('ZLEXCOUNT', SCHEDULED, range[1], range[2])
    if not head and scheduled > 0 then head = first_of(rows_of(SCHEDULED, place, 17, SCHEDULED_SEEN_MAX), 's') end
    local packed, pause = call('HGET', OVERRIDES, 'g' .. place), call('HGET', PAUSES, 'g' .. place)
    local said = packed and hf.sound_override(hf.read(packed)) or { false, false }
    local limit, rate, strict = hf.group_of(place)
    lines[i] = {
        place, limit, said[1] or false, strict and 'strict' or 'relaxed', pause and (hf.read(pause) or {}) or false,
        scheduled, waiting, numbers.r, numbers.x, head and head[ID] or false, rate or false, said[2] or false,
        hf.flow_of('g' .. place),
    }
end
return { cpack(lines), #places > most and 1 or 0 }
