-- workers: every worker's row and how many leases it holds, at one instant. Takes now. Never writes.
-- Returns id, packed row, number, and so on; then the time.
-- needs: opening names

local lines = {}
local rows = call('HGETALL', WORKERS)
for i = 1, #rows, 2 do
    local prefix = hf.escape(rows[i])
    lines[#lines + 1], lines[#lines + 2] = rows[i], rows[i + 1]
    lines[#lines + 1] = call('ZLEXCOUNT', RUNNING, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
end
return { cpack(now), lines }
