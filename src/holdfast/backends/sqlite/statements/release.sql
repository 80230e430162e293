-- release: a lease ends unfinished and the job is claimable again; no counter but a stall's is touched.
-- The turn stays, so it goes before what came later.

-- :: ready
UPDATE holdfast_jobs
SET state = 'ready', attempts = attempts + :stalled, stalls = stalls + :stalled, errors = :errors, lane = :lane,
    expires_at = CASE WHEN :stalled = 0 THEN expires_at END,
    token = NULL, worker = NULL, claim_call = NULL
WHERE seq = :seq

-- :: waiting
UPDATE holdfast_jobs
SET state = 'waiting', attempts = attempts + :stalled, stalls = stalls + :stalled, errors = :errors, lane = :lane,
    expires_at = CASE WHEN :stalled = 0 THEN expires_at END,
    held = :held, token = NULL, worker = NULL, claim_call = NULL
WHERE seq = :seq
