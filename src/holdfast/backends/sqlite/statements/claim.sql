-- claim: lease ready jobs to a worker. Reads lanes in their order. A group's limit was applied when its job became
-- ready and the other limits before a lane is read, so every job read here may be taken. Arguments above 2,048 bytes
-- are not read with the lane, only their length: `bodies` reads those of the leased jobs, which bytes_max bounds. Safe
-- against concurrent callers: one write transaction at a time; the token is new at every claim.

-- :: fragment lane_row(j)
-- What a claim reads of a job, in the order in which claim.as_lease unpacks it.
@j.seq, @j.id, @j.task, @j.queue, IIF(@j.body IS NULL AND length(@j.args) <= 2048, @j.args, NULL), @j.priority, @j.grp,
@j.key, @j.attempts, @j.failures, @j.stalls, @j.max_stalls, @j.created_at, @j.expires_at, @j.options, @j.suspect,
@j.shared_stalls, @j.due_at, COALESCE(@j.body, length(@j.args))

-- :: fragment leased(place)
-- What a lease writes. The fences are consecutive, in the order of the seqs: a job's place in it is given.
state = 'running', fence = :fence + @place, token = printf('%x.%x.%s', seq, :fence + @place, :nonce),
worker = :worker, claim_call = :call, started_at = :now, begun = 0

-- :: worker
SELECT last_call, last_answers FROM holdfast_workers WHERE id = ?

-- :: lane
SELECT @lane_row(w)
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ?
ORDER BY rank DESC, turn, seq LIMIT ? OFFSET ?

-- :: lane_apart
SELECT @lane_row(w)
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_apart
WHERE lane = 3 AND state = 'ready' AND queue = ? AND task = ?
ORDER BY rank DESC, turn, seq LIMIT ? OFFSET ?

-- :: lane_ranked
-- The same two, for some ranks only.
SELECT @lane_row(w)
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = ? AND rank >= ? AND rank <= ?
ORDER BY rank DESC, turn, seq LIMIT ? OFFSET ?

-- :: lane_apart_ranked
SELECT @lane_row(w)
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_apart
WHERE lane = 3 AND state = 'ready' AND queue = ? AND task = ? AND rank >= ? AND rank <= ?
ORDER BY rank DESC, turn, seq LIMIT ? OFFSET ?

-- :: bodies
SELECT seq, @args(holdfast_jobs) FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?))

-- :: apart_ready
WITH RECURSIVE found (task) AS (
    SELECT (SELECT task FROM holdfast_jobs INDEXED BY holdfast_jobs_apart
            WHERE lane = 3 AND state = 'ready' AND queue = ?1 ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT task FROM holdfast_jobs INDEXED BY holdfast_jobs_apart
            WHERE lane = 3 AND state = 'ready' AND queue = ?1 AND task > found.task ORDER BY task LIMIT 1)
    FROM found WHERE found.task IS NOT NULL
)
SELECT task FROM found WHERE task IS NOT NULL

-- :: running_counted
SELECT queue, task, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_counted
WHERE counted = 1 AND state = 'running' GROUP BY queue, task

-- :: held_groups
SELECT queue, grp, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ? AND grp IS NOT NULL GROUP BY queue, grp

-- :: count
UPDATE holdfast_jobs SET counted = 1, lane = grp IS NOT NULL WHERE seq IN (SELECT value FROM json_each(?))

-- :: start_keys
UPDATE holdfast_jobs SET holds_key = 0
WHERE seq IN (SELECT value FROM json_each(?)) AND holds_key = 1 AND key_started = 1 AND key_window IS NULL

-- :: take
UPDATE holdfast_jobs
SET @leased(j.key)
FROM json_each(:seqs) AS j
WHERE seq = j.value

-- :: take_one
UPDATE holdfast_jobs SET @leased(0) WHERE seq = :seq

-- :: heads
SELECT @lane_row(w), w.turn
FROM json_each(:groups) AS g CROSS JOIN holdfast_jobs AS w
WHERE w.seq = (
    SELECT n.seq @head_of_group(n, :queue, g.value))
  AND NOT EXISTS (
    SELECT 1 FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
    WHERE p.queue = :queue AND p.grp = g.value
      AND @in_play(p))

-- :: due
-- The jobs that promote would bring into play next.
SELECT @lane_row(w)
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_scheduled
WHERE state = 'scheduled' AND due_at <= ? ORDER BY due_at, seq LIMIT ?

-- :: take_due
-- As promote.to_ready, and the lease, in one step.
UPDATE holdfast_jobs
SET @leased(j.key), rank = priority, turn = :turn + j.key, lane = 0
FROM json_each(:seqs) AS j
WHERE seq = j.value

-- :: take_heads
UPDATE holdfast_jobs
SET @leased(j.key), @in_line(:turn + j.key), lane = 1
FROM json_each(:seqs) AS j
WHERE seq = j.value

-- :: take_head
UPDATE holdfast_jobs SET @leased(0), @in_line(:turn), lane = 1 WHERE seq = :seq

-- :: chained
-- The jobs that come next in a group.
SELECT @lane_row(w), w.ordinal
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue = ? AND grp = ? ORDER BY held DESC, priority DESC, ordinal, seq LIMIT ?

-- :: with_waiting
-- Those of these groups in which jobs wait.
SELECT g.value FROM json_each(:groups) AS g
WHERE EXISTS (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
    WHERE state = 'waiting' AND queue = :queue AND grp = g.value)

-- :: ordinal
SELECT ordinal FROM holdfast_jobs WHERE seq = ?

-- :: take_chained
UPDATE holdfast_jobs
SET @leased(j.key), lane = 1, counted = counted OR task IN (SELECT value FROM json_each(:trimmed))
FROM json_each(:seqs) AS j
WHERE seq = j.value

-- :: number
UPDATE holdfast_workers SET last_call = ?, last_answers = ? WHERE id = ?

-- :: again
SELECT @lane_row(w), token, fence, started_at
FROM holdfast_jobs AS w INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ? AND claim_call = ? ORDER BY fence
