-- workers: a worker's row.

-- A worker's row: lease_seconds, started_at, renewed_at, deadline, what it told of itself; or nil where there is
-- none or it cannot be read.
function hf.worker_row(id)
    local packed = call('HGET', WORKERS, id)
    if not packed or #packed < 33 then return nil end
    local lease_seconds, started_at, renewed_at, deadline, rest = struct.unpack('>dddd', packed)
    if not (lease_seconds > 0 and lease_seconds < 1e12 and deadline > 0 and deadline < 1e12) then return nil end
    return { lease_seconds, started_at, renewed_at, deadline, sub(packed, rest) }
end
