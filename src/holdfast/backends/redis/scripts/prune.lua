-- prune: remove finished jobs past their retention, or finished before a given time; buckets that say nothing any
-- more, and ids that need be known no longer. A dead job that holds its letter is not in the index this reads, so it is
-- never seen here.
-- Takes now, limit, a time or nil, a place in the index to go on from. Returns how many jobs, where to go on (-1: end),
-- and how many buckets.

if sealed then return hf.refused_sealed() end
local SEEN_MAX = 1000
local limit, before, from = args[2], args[3], args[4]
local ids, next_from = {}, -1
if before then
    local found = call('ZRANGE', PRUNABLE, from, from + SEEN_MAX - 1)
    for _, row in ipairs(hf.rows_at('prunable', PRUNABLE, found, found, 'ocd')) do
        local id = row[ID]
        if not row[PRUNE_AT] then
            hf.set_aside('prunable', PRUNABLE, id, row) -- a dead job that holds its letter
        elseif row[FINISHED_AT] <= before and #ids < limit and hf.is_past_window(row) then
            ids[#ids + 1] = id
        end
    end
    if #ids == limit then
        next_from = from -- what is left of this page has not been judged
    elseif #found == SEEN_MAX then
        next_from = from + SEEN_MAX - #ids
    end
else
    local found = call('ZRANGEBYSCORE', PRUNABLE, '-inf', now, 'LIMIT', 0, limit)
    local function prune_at(row) return row[PRUNE_AT] end
    for i, row in ipairs(hf.rows_late('prunable', PRUNABLE, found, found, 'ocd', prune_at)) do ids[i] = row[ID] end
end
hf.remove_rows(ids)
local lapsed = call('ZRANGEBYSCORE', LAPSING, '-inf', now, 'LIMIT', 0, SEEN_MAX)
hf.in_pieces('HDEL', FLOWS, lapsed, #lapsed)
hf.in_pieces('HDEL', GROUP_FLOWS, lapsed, #lapsed)
hf.in_pieces('ZREM', LAPSING, lapsed, #lapsed)
if hf.any('m') then
    local past = call('ZRANGEBYSCORE', REMEMBERED, '-inf', now, 'LIMIT', 0, SEEN_MAX)
    hf.in_pieces('ZREM', REMEMBERED, past, #past)
    if call('ZCARD', REMEMBERED) == 0 then hf.no_longer_use('m') end
end
return { #ids, next_from, #lapsed }
