-- retire: a worker stops for good; what it holds is given back free and its row goes.
-- Takes now, worker. Returns how many leases. Safe twice: the second finds no row.

local id = args[2]
if not hf.worker_row(id) then return { 0 } end
local rows = hf.held_by(id)
for _, row in ipairs(rows) do hf.give_back(row) end
hf.forget_worker(id)
hf.close()
return { #rows }
