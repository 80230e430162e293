-- recover: find workers that are past their deadline, and their leases.
-- THE ONE routine that ends stalled leases starts from these rows, whoever calls it.

-- :: fragment overdue
-- Past its deadline; or its deadline is of another boot's clock, or further ahead than any renewal sets it.
(deadline <= :steady
 OR (:boot <> '' AND deadline_boot <> '' AND (deadline_boot <> :boot OR deadline - :steady > lease_seconds + 1)))

-- :: expired
SELECT id, isolates FROM holdfast_workers
WHERE @overdue

-- :: leases
SELECT @lease_row
FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ? ORDER BY fence DESC LIMIT ?

-- :: is_behind
-- Whether a running job follows another one of its group and claim.
SELECT EXISTS (
    SELECT 1 FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
    WHERE p.queue = :queue AND p.grp = :grp AND p.state = 'running' AND @in_play(p) AND p.worker = :worker
      AND p.fence < :fence AND p.claim_call = (SELECT claim_call FROM holdfast_jobs WHERE seq = :seq))

-- :: state
SELECT state FROM holdfast_jobs WHERE id = ?

-- :: exists
SELECT isolates FROM holdfast_workers WHERE id = ?

-- :: remove
DELETE FROM holdfast_workers WHERE id = ?
