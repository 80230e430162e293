-- claim: lease ready jobs to a worker.
-- Takes lanes in their order; every limit was obeyed when a job became ready, so what is read here may be taken.
-- Safe against a rival: one write transaction at a time; the token is new at every claim.

-- :: worker
SELECT last_call, last_answers FROM holdfast_workers WHERE id = ?

-- :: lane
SELECT seq, id, task, queue, args, priority, grp, key, attempts, failures, stalls, max_stalls, created_at, expires_at,
       options, suspect, shared_stalls
FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ?
ORDER BY priority DESC, turn, seq LIMIT ?

-- :: take
UPDATE holdfast_jobs
SET state = 'running', fence = :fence + j.key, token = printf('%x.%x.%s', seq, :fence + j.key, :nonce),
    worker = :worker, claim_call = :call, started_at = :now, begun = 0
FROM json_each(:seqs) AS j
WHERE seq = j.value

-- :: number
UPDATE holdfast_workers SET last_call = ?, last_answers = ? WHERE id = ?

-- :: again
SELECT seq, id, task, queue, args, priority, grp, key, attempts, failures, stalls, max_stalls, created_at, expires_at,
       options, suspect, shared_stalls, token, fence, started_at
FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ? AND claim_call = ? ORDER BY fence

-- :: paused_queues
SELECT queue FROM holdfast_pauses WHERE kind = 'queue'

-- :: paused_tasks
SELECT name FROM holdfast_pauses WHERE kind = 'task'
