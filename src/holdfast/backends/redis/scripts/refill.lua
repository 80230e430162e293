-- refill: the safety net. One page of groups that have jobs waiting or in play is brought to its limits, and one page
-- of parked jobs whose task is no longer paused comes back. Also carries out, page by page, a changed rule, a limit or
-- a pause.
-- Takes now, queue or nil for all, a place to go on after or nil, page size, which ready jobs to look at (all but those
-- of tasks apart, the parked ones, those apart), whether groups of the queue may have several jobs ready only now;
-- ARGV[2]: a member of the ready index or of that of tasks apart to go on after, or nothing.
-- Returns how many of the groups' jobs became ready, and where to go on in both: '' at the end.

if sealed then return hf.refused_sealed() end
local within, after, limit, lanes, opened, member = args[2], args[3], args[4], args[5], args[6], ARGV[2]
local low, high = '-', '+'
if within then low, high = '[' .. hf.escape(within), '(' .. sub(hf.escape(within), 1, -2) .. '\1' end

-- The places that follow in an index, by jumping from group to group.
local function places_after(key)
    local from, places = after ~= '' and '(' .. after .. '\255' or low, {}
    while #places < limit do
        local first = call('ZRANGEBYLEX', key, from, high, 'LIMIT', 0, 1)[1]
        if not first then break end
        local place = hf.place_in(first)
        if place then
            places[#places + 1] = place
            from = '(' .. place .. '\255'
        else
            from = '(' .. first
        end
    end
    return places
end

-- The ready jobs of a group that may now have several are to be listed among them.
local function stage(place)
    local _, _, strict = hf.group_of(place)
    if strict then return end
    for _, row in ipairs(hf.ready_of(place)) do
        if row[LANE] < 8 then
            local was_in, had_key = hf.leave(row)
            row[LANE] = row[LANE] + 8
            hf.enter(row, was_in, had_key)
        end
    end
end

local made, groups_end, lane_end = 0, '', ''
if after then
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
    if opened then
        for _, place in ipairs(page) do stage(place) end
    end
    made = hf.refill(page)
    if #page == limit then groups_end = page[limit] end
end

-- Jobs of all lanes from `member` on, or only the parked ones, by jumping from queue to queue; or those of tasks apart.
local function lane_page()
    local from, found = member ~= '' and '(' .. member or low, {}
    if lanes == 'apart' then
        for i, one in ipairs(call('ZRANGEBYLEX', APART, from, high, 'LIMIT', 0, limit)) do
            local task = string.find(one, '\0', 1, true) + 1
            found[i] = { one, sub(one, string.find(one, '\0', task, true) + 29) }
        end
        return found, #found == limit and found[limit][1] or ''
    end
    while #found < limit do
        local first = call('ZRANGEBYLEX', READY, from, high, 'LIMIT', 0, 1)[1]
        if not first then return found, '' end
        local queue = sub(first, 1, string.find(first, '\0', 1, true))
        if lanes == 'parked' and sub(first, #queue + 1, #queue + 1) ~= '2' then from = '[' .. queue .. '2' end
        for _, one in ipairs(call('ZRANGEBYLEX', READY, from, '(' .. queue .. '3', 'LIMIT', 0, limit - #found)) do
            found[#found + 1] = { one, sub(one, #queue + 30) }
        end
        from = '[' .. queue .. '3'
    end
    return found, found[limit][1]
end

if member then
    local found
    found, lane_end = lane_page()
    local ids = {}
    for i, one in ipairs(found) do ids[i] = one[2] end
    hf.load_rows(ids)
    for _, id in ipairs(ids) do
        if hf.lane_of(hf.cache[id]) ~= hf.cache[id][LANE] % 4 then hf.change_lane(hf.cache[id]) end
    end
end
hf.close()
return { made, groups_end, lane_end }
