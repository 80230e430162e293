-- groups: which jobs of a group are ready.

-- == refill: make as many waiting jobs of a group ready as it has room for. THE ONE routine that does so. Takes queue,
-- group, its effective limit, and a turn for jobs that have none. Jobs in play are counted from the jobs' own states:
-- no counter exists that could drift. Safe against concurrent callers: runs inside the one write transaction.

-- :: fragment in_play(j)
-- Whether a job occupies a slot of its group.
(@j.state IN ('ready', 'running') OR (@j.state IN ('scheduled', 'dead') AND @j.held = 1))

-- :: fragment head_of_group(w, queue, grp)
-- The waiting job of a group that comes next.
FROM holdfast_jobs AS @w INDEXED BY holdfast_jobs_waiting
WHERE @w.state = 'waiting' AND @w.queue = @queue AND @w.grp = @grp
ORDER BY @w.held DESC, @w.priority DESC, @w.ordinal, @w.seq LIMIT 1

-- :: fragment lane
-- The lane of a grouped job that becomes ready: formulas.lane.
CASE WHEN :parked IS NULL THEN 1
     WHEN task IN (SELECT value FROM json_each(:parked)) THEN 2
     WHEN task IN (SELECT value FROM json_each(:apart)) THEN 3
     ELSE 1 END

-- :: fragment in_line(turn)
-- The place of a waiting job that becomes ready: with its old turn, or this one. Not used in queues with aging.
rank = priority, turn = COALESCE(turn, @turn)

-- :: any_due
SELECT EXISTS (SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled WHERE state = 'scheduled' AND due_at <= ?)

-- :: join_due
UPDATE holdfast_jobs
SET state = 'waiting', turn = NULL
WHERE seq IN (
    SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_group_due
    WHERE state = 'scheduled' AND queue = :queue AND grp = :grp AND due_at <= :now AND held = 0
    ORDER BY due_at LIMIT 2000) -- the rest follows when these have moved on: one step stays short, however many are due
  AND EXISTS (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
    WHERE state = 'waiting' AND queue = :queue AND grp = :grp)
  AND :limit > (
    SELECT count(*) FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
    WHERE p.queue = :queue AND p.grp = :grp AND @in_play(p))

-- :: fill_empty
UPDATE holdfast_jobs
SET state = 'ready', @in_line(:turn + g.place),
    lane = @lane
FROM (SELECT key AS place, json_extract(value, '$[0]') AS queue, json_extract(value, '$[1]') AS grp
      FROM json_each(:groups)) AS g
WHERE seq = (SELECT w.seq @head_of_group(w, g.queue, g.grp))
  AND NOT EXISTS (
    SELECT 1 FROM holdfast_jobs p INDEXED BY holdfast_jobs_in_play
    WHERE p.queue = g.queue AND p.grp = g.grp AND @in_play(p))

-- :: fill_one_each
UPDATE holdfast_jobs
SET state = 'ready', @in_line(g.given),
    lane = @lane
FROM (SELECT json_extract(value, '$[0]') AS queue, json_extract(value, '$[1]') AS grp,
             json_extract(value, '$[2]') AS given
      FROM json_each(:groups)) AS g
WHERE seq = (SELECT w.seq @head_of_group(w, g.queue, g.grp))

-- :: in_play
SELECT g.key, count(*), sum(p.state = 'ready'), max(IIF(p.state = 'ready', p.turn, NULL))
FROM json_each(?) AS g CROSS JOIN holdfast_jobs p INDEXED BY holdfast_jobs_in_play
WHERE p.queue = json_extract(g.value, '$[0]') AND p.grp = json_extract(g.value, '$[1]')
  AND @in_play(p)
GROUP BY g.key

-- :: waiting
SELECT seq, task, priority, turn FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue = ? AND grp = ? ORDER BY held DESC, priority DESC, ordinal, seq LIMIT ?

-- :: line
-- How many ready jobs a queue's groups have with this rank.
SELECT count(*) FROM (SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
                      WHERE state = 'ready' AND queue = ? AND lane = 1 AND rank = ? LIMIT @WEIGHED_LINE_MAX + 1)

-- :: line_turns
-- Two neighbouring turns among them.
SELECT turn FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane = 1 AND rank = ? ORDER BY turn LIMIT 2 OFFSET ?

-- :: fill
UPDATE holdfast_jobs SET state = 'ready', turn = ?, rank = ?, lane = ? WHERE seq = ?

-- :: withdraw
UPDATE holdfast_jobs SET state = 'waiting', lane = 1
WHERE seq IN (
    SELECT p.seq FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
    WHERE p.queue = :queue AND p.grp = :grp AND p.state = 'ready' AND @in_play(p)
    ORDER BY p.held, p.priority, p.ordinal DESC, p.seq DESC LIMIT :excess
)

-- :: fragment precedes(one, two)
-- Whether a job with an order comes before another of its group; one without an order comes before those with one.
(@one.priority > @two.priority
 OR (@one.priority = @two.priority AND (@one.ordinal, @one.seq) < (@two.ordinal, @two.seq)))

-- :: join_staged
-- Jobs that wait for lower orders go before one of their group that no longer does and has not started (R104).
UPDATE holdfast_jobs
SET state = 'waiting', turn = NULL
WHERE seq IN (
    SELECT s.seq FROM (
        SELECT seq, priority, ordinal, due_at FROM holdfast_jobs INDEXED BY holdfast_jobs_staged
        WHERE state = 'scheduled' AND ordinal IS NOT NULL AND held = 0 AND fence = 0 AND queue = :queue AND grp = :grp
        ORDER BY priority DESC, ordinal, seq LIMIT @STAGED_LOOKS_MAX) AS s
    CROSS JOIN (
        SELECT * FROM (
            SELECT priority, ordinal, seq FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
            WHERE state = 'waiting' AND queue = :queue AND grp = :grp AND held = 0
            ORDER BY priority, ordinal DESC, seq DESC LIMIT 1)
        UNION ALL
        SELECT p.priority, p.ordinal, p.seq FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
        WHERE p.queue = :queue AND p.grp = :grp AND p.state = 'ready' AND @in_play(p) AND p.held = 0) AS started
    WHERE s.due_at <= :now + :window AND @precedes(s, started))

-- :: give_way
-- A ready job with an order goes back to waiting, with its turn, if a lower one waits in its group (R105).
UPDATE holdfast_jobs SET state = 'waiting', lane = 1
WHERE seq = (
    SELECT p.seq FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
    CROSS JOIN (
        SELECT priority, ordinal, seq FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
        WHERE state = 'waiting' AND queue = :queue AND grp = :grp
        ORDER BY held DESC, priority DESC, ordinal, seq LIMIT 1) AS w
    WHERE p.queue = :queue AND p.grp = :grp AND p.state = 'ready' AND @in_play(p) AND p.held = 0
      AND p.ordinal IS NOT NULL AND w.ordinal IS NOT NULL AND @precedes(w, p))

-- :: wake
UPDATE holdfast_flows SET wakes_at = ? WHERE kind = ? AND queue = ? AND name = ?

-- Not (queue, grp) > (?, ?): SQLite would start such a search at the group itself and read all its jobs to get past it.
-- :: next_waiting
SELECT queue, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue = ? AND grp > ? ORDER BY grp LIMIT 1

-- :: next_waiting_queue
SELECT queue, grp FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue > ? ORDER BY queue, grp LIMIT 1
