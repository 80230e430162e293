-- enqueue: store new jobs.
-- Takes one row per job; answers by row count: 0 means the id is known, a live job has the key, or the store is sealed.
-- Safe against a rival: the unique indexes on id and live key decide, inside the writer's transaction.

-- :: insert
INSERT INTO holdfast_jobs (id, task, queue, state, priority, grp, key, lane, turn, max_stalls,
                           created_at, due_at, expires_at, args, revival, options)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: known
SELECT 1 FROM holdfast_jobs WHERE id = ?

-- :: live_key
SELECT id, state, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_live_key
WHERE queue = ? AND task = ? AND key = ? AND state IN ('scheduled', 'waiting', 'ready', 'running')

-- :: replace
UPDATE holdfast_jobs
SET state = ?, priority = ?, grp = ?, lane = ?, turn = ?, max_stalls = max(?, stalls), due_at = ?, expires_at = ?, args = ?,
    revival = ?, options = ?, held = held AND grp IS ?
WHERE id = ? AND state IN ('scheduled', 'waiting', 'ready')

-- :: joined
INSERT INTO holdfast_jobs (id, task, queue, state, priority, grp, key, lane, turn, max_stalls,
                           created_at, due_at, expires_at, args, revival, options)
SELECT ?, ?, ?, 'scheduled', ?, ?, ?, ?, NULL, ?, ?, ?, ?, ?, ?, ?
WHERE NOT EXISTS (SELECT 1 FROM holdfast_seal WHERE closed = 1)  -- looked at and inserted in one step of the caller's
ON CONFLICT DO NOTHING
