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
WHERE state = 'running' AND worker = ? ORDER BY seq LIMIT ?

-- :: exists
SELECT isolates FROM holdfast_workers WHERE id = ?

-- :: remove
DELETE FROM holdfast_workers WHERE id = ?
