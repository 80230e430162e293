-- rearrange: carry on what a changed rule has left to do, from the place where the last step stopped.
-- Takes that place and a bound; each statement follows an index from there, so a step costs what it looks at, not what
-- there is. Safe against a rival: the jobs and the place reached are written in the one write transaction.

-- :: pending
SELECT kind, queue, place FROM holdfast_rearranging

-- :: store
INSERT INTO holdfast_rearranging (kind, queue, place) VALUES (?, ?, ?)
ON CONFLICT (kind, queue) DO UPDATE SET place = excluded.place

-- :: remove
DELETE FROM holdfast_rearranging WHERE kind = ? AND queue = ?

-- :: next_queue
SELECT queue FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue > ? ORDER BY queue LIMIT 1

-- :: lane
SELECT rank, turn, seq, task, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ? ORDER BY rank DESC, turn, seq LIMIT ?

-- :: lane_in_rank
SELECT rank, turn, seq, task, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ? AND rank = ? AND (turn, seq) > (?, ?) ORDER BY turn, seq LIMIT ?

-- :: lane_below_rank
SELECT rank, turn, seq, task, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ? AND rank < ? ORDER BY rank DESC, turn, seq LIMIT ?

-- :: to_lane
UPDATE holdfast_jobs SET lane = ? WHERE seq = ?

-- :: next_group
SELECT min(grp) FROM (
    SELECT (SELECT grp FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
            WHERE state = 'waiting' AND queue = ?1 AND grp > ?2 ORDER BY grp LIMIT 1) AS grp
    UNION ALL
    SELECT (SELECT grp FROM holdfast_jobs INDEXED BY holdfast_jobs_in_play
            WHERE queue = ?1 AND grp > ?2 AND (state IN ('ready', 'running') OR (state = 'scheduled' AND held = 1))
            ORDER BY grp LIMIT 1))

-- :: newest
SELECT COALESCE(max(seq), 0) FROM holdfast_jobs

-- :: through
SELECT seq FROM holdfast_jobs WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?

-- :: count
UPDATE holdfast_jobs SET counted = 1
WHERE seq > ? AND seq <= ? AND counted = 0 AND state <> 'dead' AND task IN (SELECT value FROM json_each(?))
