-- dependencies: jobs that wait for others (R83 to R85).
-- Runs inside the one write transaction. Statuses are positions in edges.STATUSES: 0 open, 1 failed, 2 met.

-- == dependencies: edges, and the update of a job when its parents end.

-- :: stored
-- Of these jobs, those that were stored before that one, with their states.
SELECT id, state FROM holdfast_jobs
WHERE id IN (SELECT value FROM json_each(?1))
  AND (?2 IS NULL OR seq < (SELECT c.seq FROM holdfast_jobs AS c WHERE c.id = ?2))

-- :: edge
INSERT INTO holdfast_edges (parent, status, child) VALUES (?, ?, ?)

-- :: dependent
INSERT INTO holdfast_dependents (child, pending, failed, policy, delay, due_at) VALUES (?, ?, ?, ?, ?, ?)

-- :: joined
-- The state of a job, and whether it waits for its parents.
SELECT j.state, j.state = 'scheduled' AND j.due_at = @DUE_AFTER_PARENTS AND d.child IS NOT NULL
FROM holdfast_jobs AS j LEFT JOIN holdfast_dependents AS d ON d.child = j.id WHERE j.id = ?

-- :: ended
-- Of the jobs that ended or came back, by seq, those that others wait for.
SELECT j.id FROM holdfast_jobs AS j
WHERE j.seq IN (SELECT value FROM json_each(?))
  AND EXISTS (SELECT 1 FROM holdfast_edges AS e WHERE e.parent = j.id AND e.status < 2)

-- :: next
SELECT parent FROM holdfast_propagating ORDER BY number LIMIT ?

-- :: out_of_line
-- The edges of a parent to update: failed ones unless it is dead or cancelled, open ones unless it is live.
SELECT e.status, e.child, d.policy FROM holdfast_edges AS e JOIN holdfast_dependents AS d ON d.child = e.child
WHERE e.parent = ?1 AND e.status < 2 AND CASE WHEN ?2 = 'succeeded' THEN 1
                                              WHEN ?2 IN ('dead', 'cancelled') THEN e.status = 0
                                              ELSE e.status = 1 END
ORDER BY e.status, e.child LIMIT ?3

-- :: status
UPDATE holdfast_edges SET status = ? WHERE parent = ? AND status = ? AND child = ?

-- :: count
UPDATE holdfast_dependents SET pending = pending + ?, failed = failed + ? WHERE child = ? RETURNING pending

-- :: child
SELECT j.seq, j.state, j.due_at, j.expires_at, j.reason, d.pending, d.failed, d.policy, d.delay, d.due_at
FROM holdfast_dependents AS d JOIN holdfast_jobs AS j ON j.id = d.child WHERE d.child = ?

-- :: failed_parent
SELECT parent FROM holdfast_edges INDEXED BY holdfast_edges_child WHERE child = ? AND status = 1
ORDER BY parent LIMIT 1

-- :: due
UPDATE holdfast_jobs SET due_at = ?, expires_at = ? WHERE seq = ?

-- :: because_of_parent
UPDATE holdfast_jobs SET reason = 'parent' WHERE seq = ?

-- :: waits
-- A job that waits for this one.
SELECT e.child FROM holdfast_edges AS e JOIN holdfast_jobs AS c ON c.id = e.child
WHERE e.parent = ? AND e.status = 0 AND c.state = 'scheduled' AND c.due_at = @DUE_AFTER_PARENTS
ORDER BY e.child LIMIT 1

-- :: needed
-- Of these jobs, those with a child that has not finished, or whose end is still to be propagated.
SELECT j.seq FROM holdfast_jobs AS j
WHERE j.seq IN (SELECT value FROM json_each(?))
  AND (EXISTS (SELECT 1 FROM holdfast_propagating AS p WHERE p.parent = j.id)
       OR EXISTS (SELECT 1 FROM holdfast_edges AS e JOIN holdfast_jobs AS c ON c.id = e.child
                  WHERE e.parent = j.id AND c.state IN ('scheduled', 'waiting', 'ready', 'running')))

-- :: keep
UPDATE holdfast_jobs SET prune_at = max(prune_at, ?) WHERE seq = ?

-- :: uncount
-- A job is removed: update the counts of the jobs that waited for it.
UPDATE holdfast_dependents
SET pending = pending - 1, failed = failed - (SELECT e.status FROM holdfast_edges AS e
                                              WHERE e.child = holdfast_dependents.child AND e.parent = ?1)
WHERE child IN (SELECT e.child FROM holdfast_edges AS e WHERE e.parent = ?1 AND e.status < 2)

-- :: forget_children
DELETE FROM holdfast_edges WHERE parent = ?

-- :: forget_parents
DELETE FROM holdfast_edges WHERE child = ?

-- :: forget_dependent
DELETE FROM holdfast_dependents WHERE child = ?

-- :: forget_propagating
DELETE FROM holdfast_propagating WHERE parent = ?

-- :: parents
SELECT j.id, j.task, j.state, e.status, IIF(?2 AND j.state = 'succeeded', j.value, NULL)
FROM holdfast_edges AS e INDEXED BY holdfast_edges_child JOIN holdfast_jobs AS j ON j.id = e.parent
WHERE e.child = ?1 AND e.parent > ?4 ORDER BY e.parent LIMIT ?3

-- :: children
SELECT j.id, j.task, j.state, e.status, NULL
FROM holdfast_edges AS e JOIN holdfast_jobs AS j ON j.id = e.child
WHERE e.parent = ?1 AND e.status >= ?2 AND e.child > ?4 ORDER BY e.child LIMIT ?3

-- :: pending
SELECT pending FROM holdfast_dependents WHERE child = ?

-- :: edges
SELECT e.parent, e.child, e.status, d.policy, d.delay, d.due_at
FROM holdfast_edges AS e JOIN holdfast_dependents AS d ON d.child = e.child
WHERE (e.child, e.parent) > (?, ?) ORDER BY e.child, e.parent LIMIT ?

-- :: dependents
SELECT child, pending, failed FROM holdfast_dependents ORDER BY child

-- :: propagating
SELECT parent FROM holdfast_propagating ORDER BY parent

-- :: carried_edge
INSERT INTO holdfast_edges (parent, status, child) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- :: carried_dependent
INSERT INTO holdfast_dependents (child, pending, failed, policy, delay, due_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (child) DO UPDATE SET pending = pending + excluded.pending, failed = failed + excluded.failed

-- :: to_propagate
INSERT INTO holdfast_propagating (parent) VALUES (?) ON CONFLICT (parent) DO NOTHING
