-- steps: what jobs keep between their attempts (R91 to R94).
-- Runs inside the one write transaction, so a checkpoint, a signal and a settlement never overlap.

-- == checkpoint: store steps of a running job, after its lease was found by (id, token).

-- :: lease
SELECT fence FROM holdfast_jobs WHERE id = ? AND token = ? AND state = 'running'

-- :: store
INSERT INTO holdfast_steps (job_id, kind, name, number, value, until, at, fence) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job_id, kind, name) DO UPDATE
SET number = excluded.number, value = excluded.value, until = excluded.until, at = excluded.at, fence = excluded.fence

-- == signal: store a signal, and find out whether the job waits for it.

-- :: store
INSERT INTO holdfast_steps (job_id, kind, name, number, value, until, at, fence)
VALUES (?, 'signal', ?, 0, ?, NULL, ?, ?)
ON CONFLICT (job_id, kind, name) DO NOTHING

-- :: count
SELECT count(*) FROM holdfast_steps WHERE job_id = ? AND kind = 'signal'

-- :: known
SELECT EXISTS (SELECT 1 FROM holdfast_steps WHERE job_id = ? AND kind = 'signal' AND name = ?)

-- :: is_waiting
SELECT EXISTS (SELECT 1 FROM holdfast_steps AS s JOIN holdfast_jobs AS j ON j.id = s.job_id
               WHERE s.job_id = ? AND s.kind = 'wait' AND s.name = ? AND s.fence = j.fence
                 AND j.due_at < @DUE_AFTER_PARENTS)

-- == steps: read, remove and carry.

-- :: of_job
SELECT job_id, kind, name, number, value, until, at, fence FROM holdfast_steps
WHERE job_id = ? ORDER BY kind, name

-- :: after
SELECT job_id, kind, name, number, value, until, at, fence FROM holdfast_steps
WHERE (job_id, kind, name) > (?, ?, ?) ORDER BY job_id, kind, name LIMIT ?

-- :: any
SELECT EXISTS (SELECT 1 FROM holdfast_steps)

-- :: has
SELECT EXISTS (SELECT 1 FROM holdfast_steps WHERE job_id = ?)

-- :: forget
DELETE FROM holdfast_steps WHERE job_id = ?

-- :: carry
INSERT INTO holdfast_steps (job_id, kind, name, number, value, until, at, fence) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job_id, kind, name) DO NOTHING
