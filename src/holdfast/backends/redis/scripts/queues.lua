-- queues: what a list of queues shows, at one instant. Takes now. Never writes.
-- Returns packed counts, packed {queue → earliest due time of a ready job}, then rules, pauses, overrides and buckets
-- as they are stored.
-- The earliest due time is exact up to READY_SEEN_MAX ready jobs; beyond, it is that of those claimed next.

local READY_SEEN_MAX, NEXT_SEEN = 10000, 500
local left, oldest = READY_SEEN_MAX, {}

-- The jobs of one lane; in front of the rank that begins each, its members have so many bytes.
local function look(queue, key, low, high, bytes)
    local number = call('ZLEXCOUNT', key, low, high)
    local seen = number <= left and number or NEXT_SEEN
    left = left - math.min(left, seen)
    for _, member in ipairs(call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, seen)) do
        local due = #member > bytes + 28 and struct.unpack('>d', member, bytes + 21)
        if due and (not oldest[queue] or due < oldest[queue]) then oldest[queue] = due end
    end
end

hf.each_queue(READY, '', function(prefix, queue)
    for lane = 0, 2 do look(queue, READY, '[' .. prefix .. lane, '(' .. prefix .. (lane + 1), #prefix + 1) end
end)
hf.each_queue(APART, '', function(prefix, queue)
    for _, one in ipairs(hf.tasks_apart(queue)) do
        look(queue, APART, '[' .. one[2], '(' .. one[2] .. '\255', #one[2])
    end
end)
return { cpack(hf.counted()), cpack(oldest), call('HGETALL', RULES), call('HGETALL', PAUSES),
    call('HGETALL', OVERRIDES), call('HGETALL', FLOWS) }
