-- read: queries for people and programs. Never writes.

-- :: fragment args(j)
-- A job's arguments, wherever they are stored; empty if they are gone.
IIF(@j.body IS NULL, @j.args, COALESCE((SELECT b.args FROM holdfast_bodies b WHERE b.seq = @j.seq), @j.args))

-- :: job
SELECT seq, id, task, queue, state, @args(holdfast_jobs), priority, grp, key, attempts, failures, stalls, max_stalls, created_at,
       due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
       progress_text, value, reason, errors, revival, options, shared_stalls, suspect, holds_key,
       key_queue, key_started, key_window, due_max, dropped, ordinal
FROM holdfast_jobs

-- :: light_job
-- The same without the columns that may be large.
SELECT seq, id, task, queue, state, x'7b7d', priority, grp, key, attempts, failures, stalls, max_stalls, created_at,
       due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
       progress_text, NULL, reason, NULL, revival, options, shared_stalls, suspect, holds_key,
       key_queue, key_started, key_window, due_max, dropped, ordinal
FROM holdfast_jobs

-- :: job_beyond
SELECT token, turn, IIF(state = 'ready', rank, 0), lane, claim_call, prune_at FROM holdfast_jobs ORDER BY seq

-- :: worker_beyond
SELECT id, deadline, last_call FROM holdfast_workers

-- :: all_logs
SELECT j.id, l.at, l.text FROM holdfast_logs l JOIN holdfast_jobs j ON j.seq = l.job_seq ORDER BY l.job_seq, l.line

-- :: all_marks
SELECT id, marks FROM holdfast_jobs WHERE marks IS NOT NULL ORDER BY seq

-- :: due_at
SELECT due_at FROM holdfast_jobs WHERE seq = ?

-- :: next_by_due
SELECT due_at, seq FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled
WHERE state = 'scheduled' AND (due_at, seq) > (?, ?) ORDER BY due_at, seq LIMIT ?

-- :: has_more_ids
-- By the largest and the smallest seq: exact enough, and no job is read.
SELECT max(seq) - (SELECT min(seq) FROM holdfast_jobs) >= ? FROM holdfast_jobs

-- :: next_queue
SELECT min(queue) FROM holdfast_jobs INDEXED BY holdfast_jobs_names WHERE queue > ?

-- :: next_task
SELECT min(task) FROM holdfast_jobs INDEXED BY holdfast_jobs_names WHERE queue = ? AND task > ?

-- :: count
-- Each a range of one index; only ready jobs are read. 'succeeded' has none: it is what remains of the total (NULL).
SELECT NULL, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_names WHERE queue = :queue
UNION ALL
SELECT 'scheduled', count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_group_due
WHERE state = 'scheduled' AND queue = :queue
UNION ALL
SELECT 'waiting', count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue = :queue
UNION ALL
SELECT 'ready', count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_ready WHERE state = 'ready' AND queue = :queue
UNION ALL
SELECT state, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_rare
WHERE state <> 'ready' AND state <> 'running' AND state <> 'succeeded' AND state <> 'scheduled' AND state <> 'waiting'
  AND queue = :queue GROUP BY state

-- :: count_running
SELECT queue, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running WHERE state = 'running' GROUP BY queue

-- :: logs
SELECT at, text FROM holdfast_logs
WHERE job_seq = (SELECT seq FROM holdfast_jobs WHERE id = ?) ORDER BY line

-- :: marks
SELECT marks FROM holdfast_jobs WHERE id = ?

-- :: letter
SELECT job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at, reason, error, history, cycles,
       revive_at, revived_at
FROM holdfast_letters

-- :: letter_and_options
SELECT job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at, reason, error, history, cycles,
       revive_at, revived_at, (SELECT j.options FROM holdfast_jobs j WHERE j.id = job_id)
FROM holdfast_letters

-- :: queues
SELECT name, group_limit, group_order, job_limit, rate, group_rate, aging, on_dead, order_window, dead_queue
FROM holdfast_queues ORDER BY name

-- :: tasks
SELECT name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count FROM holdfast_tasks ORDER BY name

-- :: running_tasks
SELECT task, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker IS NOT NULL GROUP BY task

-- :: oldest_ready
-- Exact up to 10,000 of them; beyond, that of the first ones in the order of the index.
SELECT min(due_at) FROM (
    SELECT due_at FROM holdfast_jobs INDEXED BY holdfast_jobs_ready WHERE state = 'ready' AND queue = ? LIMIT 10000)

-- :: next_group
SELECT min(found) FROM (
    SELECT (SELECT grp FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
            WHERE state = 'waiting'
              AND queue = ?1 AND grp > ?2 ORDER BY grp LIMIT 1) AS found
    UNION ALL
    SELECT (SELECT grp FROM holdfast_jobs INDEXED BY holdfast_jobs_in_play
            WHERE grp IS NOT NULL AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held = 1))
              AND queue = ?1 AND grp > ?2 ORDER BY grp LIMIT 1) AS found
    UNION ALL
    SELECT (SELECT grp FROM holdfast_jobs INDEXED BY holdfast_jobs_group_due
            WHERE state = 'scheduled' AND grp IS NOT NULL
              AND queue = ?1 AND grp > ?2 ORDER BY grp LIMIT 1) AS found
    UNION ALL
    SELECT (SELECT name FROM holdfast_overrides WHERE kind = 'group' AND queue = ?1 AND name > ?2 ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT name FROM holdfast_pauses WHERE kind = 'group' AND queue = ?1 AND name > ?2 ORDER BY name LIMIT 1))

-- :: next_group_queue
-- Of all queues that have jobs: those without groups are passed over by next_group.
SELECT min(found) FROM (
    SELECT (SELECT min(queue) FROM holdfast_jobs INDEXED BY holdfast_jobs_names WHERE queue > ?1) AS found
    UNION ALL
    SELECT (SELECT queue FROM holdfast_overrides WHERE kind = 'group' AND queue > ?1 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM holdfast_pauses WHERE kind = 'group' AND queue > ?1 ORDER BY queue LIMIT 1))

-- :: group_counts
-- Each up to ?3, so that a group of any size takes no longer.
SELECT 'waiting', count(*) FROM (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
    WHERE state = 'waiting' AND queue = ?1 AND grp = ?2 LIMIT ?3)
UNION ALL
SELECT 'scheduled', count(*) FROM (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_group_due
    WHERE state = 'scheduled' AND queue = ?1 AND grp = ?2 LIMIT ?3)
UNION ALL
SELECT 'ready', count(*) FROM (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_in_play
    WHERE queue = ?1 AND grp = ?2 AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held = 1))
      AND state = 'ready' LIMIT ?3)
UNION ALL
SELECT 'running', count(*) FROM (
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_in_play
    WHERE queue = ?1 AND grp = ?2 AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held = 1))
      AND state = 'running' LIMIT ?3)

-- :: group_in_play
-- In state ?3; of the first ?4 where a group has more.
SELECT id FROM (
    SELECT id, priority, ordinal, seq FROM holdfast_jobs INDEXED BY holdfast_jobs_in_play
    WHERE queue = ?1 AND grp = ?2 AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held = 1))
      AND state = ?3 LIMIT ?4)
ORDER BY priority DESC, ordinal, seq LIMIT 1

-- :: group_waiting
SELECT id FROM holdfast_jobs INDEXED BY holdfast_jobs_waiting
WHERE state = 'waiting' AND queue = ?1 AND grp = ?2 ORDER BY held DESC, priority DESC, ordinal, seq LIMIT 1

-- :: group_scheduled
-- Of the first ?3 to come due.
SELECT id FROM (
    SELECT id, priority, ordinal, seq FROM holdfast_jobs INDEXED BY holdfast_jobs_group_due
    WHERE state = 'scheduled' AND queue = ?1 AND grp = ?2 ORDER BY due_at LIMIT ?3)
ORDER BY priority DESC, ordinal, seq LIMIT 1

-- :: group_pause
SELECT reason, paused_by, paused_at FROM holdfast_pauses WHERE kind = 'group' AND queue = ? AND name = ?

-- :: waking
SELECT 1 FROM holdfast_flows WHERE kind = 'group' AND queue = ? AND wakes_at IS NOT NULL LIMIT 1

-- :: workers
SELECT w.id, w.host, w.pid, w.boot_id, w.pid_namespace, w.lease_seconds, w.queues, w.slots, w.started_at, w.renewed_at,
       w.isolates,
       (SELECT count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running WHERE state = 'running' AND worker = w.id),
       (SELECT portrait FROM holdfast_portraits WHERE worker = w.id)
FROM holdfast_workers w ORDER BY w.started_at, w.id

-- :: claimable
SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane BETWEEN 0 AND 1 LIMIT 1

-- :: next_due
SELECT (SELECT min(due_at) FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled WHERE state = 'scheduled'),
       (SELECT min(wakes_at) FROM holdfast_flows INDEXED BY holdfast_flows_wakes WHERE wakes_at IS NOT NULL)

-- :: ended
SELECT asked.value, j.id IS NOT NULL, j.state IN ('succeeded', 'cancelled', 'dead')
FROM json_each(?) AS asked LEFT JOIN holdfast_jobs j ON j.id = asked.value

-- :: data_version
PRAGMA data_version
