-- queues: what a list of queues shows, at one instant. Takes now. Never writes.
-- Returns packed counts, packed {queue → earliest due time of a ready job}, then rules and pauses as they are stored.
-- The earliest due time is exact up to READY_SEEN_MAX ready jobs; beyond, it is that of those claimed next.
-- needs: opening counting

local READY_SEEN_MAX, NEXT_SEEN = 10000, 500
local left, oldest = READY_SEEN_MAX, {}
hf.each_queue(READY, '', function(prefix, queue)
    for lane = 0, 2 do
        local low, high = '[' .. prefix .. lane, '(' .. prefix .. (lane + 1)
        local number = call('ZLEXCOUNT', READY, low, high)
        local seen = number <= left and number or NEXT_SEEN
        left = left - math.min(left, seen)
        for _, member in ipairs(call('ZRANGEBYLEX', READY, low, high, 'LIMIT', 0, seen)) do
            local due = struct.unpack('>d', member, #prefix + 22)
            if not oldest[queue] or due < oldest[queue] then oldest[queue] = due end
        end
    end
end)
return { cpack(hf.counted()), cpack(oldest), call('HGETALL', RULES), call('HVALS', PAUSES) }
