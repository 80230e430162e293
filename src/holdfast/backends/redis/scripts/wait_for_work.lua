-- wait_for_work: is there work at hand in these queues? Takes now, queues. Never writes.
-- Returns packed seconds until there may be work (0 now, nil when nothing is scheduled) and the last hint's place.
-- While the store is quiet there is none.
-- needs: opening names

local last = call('XREVRANGE', WAKE, '+', '-', 'COUNT', 1)[1]
last = last and last[1] or '0-0'
local quiet = (tonumber(meta[5]) or 0) - now
if quiet > 0 then return { cpack(quiet), last } end
for _, queue in ipairs(args[2]) do
    local prefix = hf.escape(queue)
    if #call('ZRANGEBYLEX', READY, '[' .. prefix .. '0', '(' .. prefix .. '2', 'LIMIT', 0, 1) > 0
        and call('HEXISTS', PAUSES, 'q' .. queue) == 0 then
        return { cpack(0), last }
    end
end
local due = call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
return { cpack(due[2] and math.max(0, tonumber(due[2]) - now) or nil), last }
