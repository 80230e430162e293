-- read: what is shown to people and programs. Never writes.

-- :: job
SELECT seq, id, task, queue, state, args, priority, grp, key, attempts, failures, stalls, max_stalls, created_at,
       due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
       progress_text, value, reason, errors, revival, options, shared_stalls, suspect, holds_key,
       key_queue, key_started, key_window, due_max, dropped
FROM holdfast_jobs

-- :: job_beyond
SELECT token, turn, IIF(state = 'ready', rank, 0), lane, claim_call, prune_at FROM holdfast_jobs ORDER BY seq

-- :: worker_beyond
SELECT id, deadline, last_call FROM holdfast_workers

-- :: all_logs
SELECT j.id, l.at, l.text FROM holdfast_logs l JOIN holdfast_jobs j ON j.seq = l.job_seq ORDER BY l.job_seq, l.line

-- :: count
SELECT queue, state, count(*) FROM holdfast_jobs WHERE (:queue IS NULL OR queue = :queue) GROUP BY queue, state

-- :: logs
SELECT at, text FROM holdfast_logs
WHERE job_seq = (SELECT seq FROM holdfast_jobs WHERE id = ?) ORDER BY line

-- :: letter
SELECT job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at, reason, error, history, cycles,
       revive_at, revived_at
FROM holdfast_letters

-- :: queues
SELECT name, group_limit, group_order, job_limit, rate, group_rate, aging FROM holdfast_queues ORDER BY name

-- :: tasks
SELECT name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count FROM holdfast_tasks ORDER BY name

-- :: running_tasks
SELECT task, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker IS NOT NULL GROUP BY task

-- :: oldest_ready
SELECT min(due_at) FROM holdfast_jobs INDEXED BY holdfast_jobs_ready WHERE state = 'ready' AND queue = ?

-- :: groups
SELECT queue, name FROM (
    SELECT DISTINCT queue, grp AS name FROM holdfast_jobs
    WHERE grp IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready', 'running')
    UNION SELECT queue, name FROM holdfast_overrides WHERE kind = 'group'
    UNION SELECT queue, name FROM holdfast_pauses WHERE kind = 'group'
) WHERE (:queue IS NULL OR queue = :queue) ORDER BY queue, name LIMIT :most

-- :: group_counts
SELECT state, count(*) FROM holdfast_jobs
WHERE queue = ? AND grp = ? AND state IN ('scheduled', 'waiting', 'ready', 'running') GROUP BY state

-- :: group_head
SELECT id FROM holdfast_jobs
WHERE queue = ? AND grp = ? AND state IN ('scheduled', 'waiting', 'ready', 'running')
ORDER BY state <> 'running', state <> 'ready', NOT (state = 'scheduled' AND held), state <> 'waiting',
         (state = 'waiting' AND held) DESC, priority DESC, seq
LIMIT 1

-- :: workers
SELECT w.id, w.host, w.pid, w.boot_id, w.pid_namespace, w.lease_seconds, w.queues, w.slots, w.started_at, w.renewed_at,
       w.isolates,
       (SELECT count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_running WHERE state = 'running' AND worker = w.id),
       (SELECT portrait FROM holdfast_portraits WHERE worker = w.id)
FROM holdfast_workers w ORDER BY w.started_at, w.id

-- :: claimable
SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_ready
WHERE state = 'ready' AND queue = ? AND lane IN (0, 1) LIMIT 1

-- :: next_due
SELECT (SELECT min(due_at) FROM holdfast_jobs INDEXED BY holdfast_jobs_scheduled WHERE state = 'scheduled'),
       (SELECT min(wakes_at) FROM holdfast_flows INDEXED BY holdfast_flows_wakes WHERE wakes_at IS NOT NULL)

-- :: ended
SELECT asked.value, j.id IS NOT NULL, j.state IN ('succeeded', 'cancelled', 'dead')
FROM json_each(?) AS asked LEFT JOIN holdfast_jobs j ON j.id = asked.value

-- :: data_version
PRAGMA data_version
