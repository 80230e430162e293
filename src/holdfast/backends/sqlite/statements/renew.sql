-- renew: move a worker's deadline; one write however many leases it holds.
-- Answers by row count whether the worker is known.

-- :: deadline
UPDATE holdfast_workers SET deadline = :steady + lease_seconds, deadline_boot = :boot, renewed_at = :now WHERE id = :id

-- :: portrait
INSERT INTO holdfast_portraits (worker, portrait) VALUES (?, ?)
ON CONFLICT (worker) DO UPDATE SET portrait = excluded.portrait

-- :: leases
SELECT id, token, claim_call, cancel_requested FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ?
