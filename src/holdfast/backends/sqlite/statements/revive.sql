-- revive: a finished job is claimable again with fresh budgets; one step, harmless when repeated.

-- :: letter_of
SELECT logical, job_id, cycles, revived_at FROM holdfast_letters WHERE job_id = ?

-- :: letter_by_logical
SELECT job_id FROM holdfast_letters WHERE logical = ?

-- :: scheduled
UPDATE holdfast_jobs
SET state = 'scheduled', holds_key = key IS NOT NULL, attempts = 0, failures = 0, stalls = 0, shared_stalls = 0,
    suspect = 0, due_at = ?, expires_at = NULL, finished_at = NULL, prune_at = NULL, reason = NULL, value = NULL, turn = NULL,
    cancel_requested = 0, begun = 0, held = 0, progress = NULL, progress_text = NULL
WHERE seq = ?

-- :: mark
UPDATE holdfast_letters SET revived_at = ?, revive_at = NULL, cycles = cycles + ? WHERE logical = ?

-- :: unset
UPDATE holdfast_letters SET revive_at = NULL WHERE job_id = ?

-- :: due_now
UPDATE holdfast_jobs SET due_at = ? WHERE seq = ?
