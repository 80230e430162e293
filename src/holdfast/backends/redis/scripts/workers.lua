-- workers: every worker's row and how many leases it holds, at one instant. Takes now. Never writes.
-- Returns the time; id, packed row, number, portrait, and so on.

local lines = {}
local rows = call('HGETALL', WORKERS)
for i = 1, #rows, 2 do
    local prefix = hf.escape(rows[i])
    lines[#lines + 1], lines[#lines + 2] = rows[i], rows[i + 1]
    lines[#lines + 1] = call('ZLEXCOUNT', RUNNING, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
    lines[#lines + 1] = call('HGET', PORTRAITS, rows[i])
end
return { cpack(now), lines }
