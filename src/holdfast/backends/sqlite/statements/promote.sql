-- promote: bring due jobs into play.
-- Takes the time and a limit; returns the rows it may move. Runs inside the one write transaction.

-- :: look
SELECT EXISTS (SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled
               WHERE state = 'scheduled' AND due_at <= :now),
       EXISTS (SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_expires
               WHERE expires_at <= :now AND expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready')),
       EXISTS (SELECT 1 FROM holdfast_letters WHERE revive_at <= :now AND revive_at IS NOT NULL),
       EXISTS (SELECT 1 FROM holdfast_workers
               WHERE @overdue),
       EXISTS (SELECT 1 FROM holdfast_propagating)

-- :: due
SELECT seq, queue, task, grp, priority FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled
WHERE state = 'scheduled' AND due_at <= ? ORDER BY due_at, seq LIMIT ?

-- :: to_ready
UPDATE holdfast_jobs SET state = 'ready', lane = ?, turn = ?, rank = ? WHERE seq = ?

-- :: to_waiting
UPDATE holdfast_jobs SET state = 'waiting', turn = ? WHERE seq = ? RETURNING ordinal IS NOT NULL

-- :: expired
SELECT id FROM holdfast_jobs INDEXED BY holdfast_jobs_expires
WHERE expires_at <= ? AND expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready')
ORDER BY expires_at LIMIT ?

-- :: waking
UPDATE holdfast_flows SET wakes_at = NULL
WHERE (kind, queue, name) IN (
    SELECT kind, queue, name FROM holdfast_flows INDEXED BY holdfast_flows_wakes
    WHERE wakes_at IS NOT NULL AND wakes_at <= ? ORDER BY wakes_at LIMIT ?)
RETURNING queue, name

-- :: letters_due
SELECT job_id FROM holdfast_letters WHERE revive_at <= ? AND revive_at IS NOT NULL ORDER BY revive_at LIMIT ?
