-- register: store a worker's row, its deadline one lease from now; repeating it renews the deadline.
-- Takes now, id, lease_seconds; ARGV[2]: what the worker told of itself. Returns nothing.
-- needs: opening names rows index leases

local id = args[2]
hf.prolong(id, hf.worker_row(id) or { args[3], now, now, now, ARGV[2] })
return { 1 }
