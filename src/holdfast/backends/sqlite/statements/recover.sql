-- recover: find workers that are past their deadline, and their leases.
-- THE ONE routine that ends stalled leases starts from these rows, whoever calls it.

-- :: expired
SELECT id, isolates FROM holdfast_workers
WHERE deadline <= :steady
   OR (:boot <> '' AND deadline_boot <> '' AND (deadline_boot <> :boot OR deadline - :steady > lease_seconds + 1))

-- :: leases
SELECT seq, id, task, queue, grp, key, attempts, failures, stalls, max_stalls, started_at, fence, worker, begun,
       cancel_requested, errors, revival, shared_stalls, suspect, priority
FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ? ORDER BY seq LIMIT ?

-- :: exists
SELECT isolates FROM holdfast_workers WHERE id = ?

-- :: remove
DELETE FROM holdfast_workers WHERE id = ?
