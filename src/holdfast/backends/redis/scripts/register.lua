-- register: store a worker's row, its deadline one lease from now; repeating it renews the deadline.
-- Takes now, id, lease_seconds; ARGV[2]: what the worker told of itself. Returns nothing.
-- needs: opening names rows index leases

local id, lease_seconds = args[2], args[3]
if lease_seconds > hf.lease_max() then call('HSET', META, 'lease_max', format('%.17g', lease_seconds)) end
hf.prolong(id, hf.worker_row(id) or { lease_seconds, now, now, now, ARGV[2] })
return { 1 }
