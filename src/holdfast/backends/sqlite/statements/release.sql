-- release: a lease ends unfinished and the job is claimable again; no counter but a stall's is touched, and a stall makes
-- it a suspect. The turn stays, so it goes before what came later.

-- :: ready
UPDATE holdfast_jobs
SET state = 'ready', rank = :rank, attempts = attempts + :stalls + :shared_stalls, stalls = stalls + :stalls,
    shared_stalls = shared_stalls + :shared_stalls, suspect = suspect OR :stalls + :shared_stalls > 0,
    expires_at = CASE WHEN :stalls + :shared_stalls = 0 THEN expires_at END, errors = :errors, lane = :lane,
    token = NULL, worker = NULL, claim_call = NULL
WHERE seq = :seq

-- :: waiting
UPDATE holdfast_jobs
SET state = 'waiting', attempts = attempts + :stalls + :shared_stalls, stalls = stalls + :stalls,
    shared_stalls = shared_stalls + :shared_stalls, suspect = suspect OR :stalls + :shared_stalls > 0,
    expires_at = CASE WHEN :stalls + :shared_stalls = 0 THEN expires_at END, errors = :errors,
    held = :held, token = NULL, worker = NULL, claim_call = NULL
WHERE seq = :seq
