-- register: store a worker's row, its deadline one lease from now; repeating it renews the deadline
-- and takes over queues and slots.
-- Takes now, id, lease_seconds; ARGV[2]: what the worker told of itself. Returns nothing.

local id, lease_seconds = args[2], args[3]
if lease_seconds > hf.lease_max() then call('HSET', META, 'lease_max', format('%.17g', lease_seconds)) end
local worker = hf.worker_row(id)
if worker then
    local tells = cunpack(ARGV[2])
    local told = hf.read(worker[5]) or tells
    told.queues, told.slots = tells.queues, tells.slots
    worker[5] = cpack(told)
end
hf.prolong(id, worker or { lease_seconds, now, now, now, ARGV[2] })
return { 1 }
