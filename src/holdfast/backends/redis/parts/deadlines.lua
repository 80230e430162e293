-- deadlines: the one deadline of all a worker's leases, and the worker's end.
-- seldom: built when a script first uses one of its names.

local LEASE_SECONDS = 30

-- The longest lease any worker ever had, and never less than the usual one: a row may be among what was lost.
function hf.lease_max() return tonumber(call('HGET', META, 'lease_max')) or LEASE_SECONDS end

-- Moves the deadline of all the worker's leases: one small write.
function hf.prolong(id, worker)
    worker[3], worker[4] = now, now + worker[1]
    call('HSET', WORKERS, id, spack('>dddd', worker[1], worker[2], worker[3], worker[4]) .. worker[5])
    call('ZADD', DEADLINES, worker[4], id)
end

function hf.forget_worker(id)
    call('HDEL', WORKERS, id)
    call('HDEL', PORTRAITS, id)
    call('ZREM', DEADLINES, id)
    call('HDEL', CALLS, id)
end
