-- refill: the safety net. One page of groups that have jobs waiting or in play is brought to its limits, and one page
-- of parked jobs whose task is no longer paused comes back.
-- Takes now, a place to go on after, page size; ARGV[2]: a member of the ready index to go on after.
-- Returns how many of the groups' jobs became ready, and where to go on in both: '' at the end.
-- Safe against a rival: a script runs alone.

if sealed then return hf.refused_sealed() end
local after, limit, member = args[2], args[3], ARGV[2]

-- The places that follow in an index, by jumping from group to group.
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
