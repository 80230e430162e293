-- prune: remove finished jobs past their retention. A dead job that holds its letter has no prune_at.

-- :: past
SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_prune
WHERE prune_at IS NOT NULL AND prune_at <= ? ORDER BY prune_at LIMIT ?

-- :: older
SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_prune
WHERE prune_at IS NOT NULL AND finished_at <= ? LIMIT ?

-- :: job
DELETE FROM holdfast_jobs WHERE seq = ?

-- :: logs
DELETE FROM holdfast_logs WHERE job_seq = ?
