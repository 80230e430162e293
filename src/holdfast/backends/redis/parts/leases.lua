-- leases: what a worker holds, and who holds what. Read off the index of running jobs.

local LEASE_SECONDS = 30

-- The worker's running jobs, in the order of their fences; at most so many where it is said.
function hf.held_by(worker, most)
    hf.flush()
    local prefix, ids, rows = hf.escape(worker), {}, {}
    local upper = '(' .. sub(prefix, 1, -2) .. '\1'
    local members = call('ZRANGEBYLEX', RUNNING, '[' .. prefix, upper, 'LIMIT', 0, most or -1)
    for i, member in ipairs(members) do
        ids[i] = sub(member, string.find(member, '\0', #prefix + 17, true) + 1)
    end
    hf.load_rows(ids)
    for i, id in ipairs(ids) do rows[i] = hf.cache[id] end
    return rows
end

-- A worker's row: lease_seconds, started_at, renewed_at, deadline, what it told of itself; or nil.
function hf.worker_row(id)
    local packed = call('HGET', WORKERS, id)
    if not packed then return nil end
    local lease_seconds, started_at, renewed_at, deadline, rest = struct.unpack('>dddd', packed)
    return { lease_seconds, started_at, renewed_at, deadline, sub(packed, rest) }
end

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
