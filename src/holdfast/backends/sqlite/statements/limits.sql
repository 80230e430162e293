-- limits: what code declares and operators override for queues, groups and tasks.

-- == declare: the rules of queues and tasks, as declared by the code.
-- Takes a whole rule; the latest call wins. Readers inside a transaction see one rule.

-- :: rule
SELECT name, group_limit, group_order, job_limit, rate, group_rate, aging, on_dead, order_window, dead_queue
FROM holdfast_queues WHERE name = ?

-- :: store
INSERT INTO holdfast_queues (name, group_limit, group_order, job_limit, rate, group_rate, aging, on_dead,
                             order_window, dead_queue)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET group_limit = excluded.group_limit, group_order = excluded.group_order, job_limit = excluded.job_limit,
    rate = excluded.rate, group_rate = excluded.group_rate, aging = excluded.aging, on_dead = excluded.on_dead,
    order_window = excluded.order_window, dead_queue = excluded.dead_queue

-- :: task
SELECT name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count FROM holdfast_tasks WHERE name = ?

-- :: store_task
INSERT INTO holdfast_tasks (name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET job_limit = excluded.job_limit, rate = excluded.rate, apart = excluded.apart, retain_count = excluded.retain_count,
    retain_dead = excluded.retain_dead, retain_dead_count = excluded.retain_dead_count

-- :: forget_task
DELETE FROM holdfast_tasks WHERE name = ?

-- == limit: what is in force: the rules of queues and tasks, and an operator's override, which takes precedence.
-- Takes a kind (queue, group, task) and names; returns limits as numbers, rates as JSON. Safe against concurrent
-- callers: read and written inside the one write transaction, with the jobs that move because of it.

-- :: any
SELECT EXISTS (SELECT 1 FROM holdfast_pauses),
       EXISTS (SELECT 1 FROM holdfast_overrides),
       EXISTS (SELECT 1 FROM holdfast_tasks),
       EXISTS (SELECT 1 FROM holdfast_queues INDEXED BY holdfast_queues_flow
               WHERE job_limit IS NOT NULL OR rate IS NOT NULL OR aging IS NOT NULL),
       EXISTS (SELECT 1 FROM holdfast_flows),
       EXISTS (SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_key WHERE holds_key = 1),
       EXISTS (SELECT 1 FROM holdfast_letters),
       EXISTS (SELECT 1 FROM holdfast_rearranging),
       EXISTS (SELECT 1 FROM holdfast_remembered),
       EXISTS (SELECT 1 FROM holdfast_edges),
       (SELECT record FROM holdfast_seal WHERE closed = 1),
       COALESCE((SELECT CAST(seq AS INTEGER) FROM sqlite_sequence WHERE name = 'holdfast_ticks'), 0)

-- :: store_tick
UPDATE sqlite_sequence SET seq = ? WHERE name = 'holdfast_ticks'

-- :: create_tick
INSERT INTO sqlite_sequence (seq, name) VALUES (?, 'holdfast_ticks')

-- :: kinds_paused
SELECT EXISTS (SELECT 1 FROM holdfast_pauses WHERE kind = 'queue'),
       EXISTS (SELECT 1 FROM holdfast_pauses WHERE kind = 'group'),
       EXISTS (SELECT 1 FROM holdfast_pauses WHERE kind = 'task')

-- :: kinds_overridden
SELECT EXISTS (SELECT 1 FROM holdfast_overrides WHERE kind = 'queue'),
       EXISTS (SELECT 1 FROM holdfast_overrides WHERE kind = 'group'),
       EXISTS (SELECT 1 FROM holdfast_overrides WHERE kind = 'task')

-- :: paused_queues
SELECT queue FROM holdfast_pauses WHERE kind = 'queue'

-- :: queue
SELECT group_order, group_limit, group_rate, aging, job_limit, rate, on_dead, order_window, dead_queue
FROM holdfast_queues WHERE name = ?

-- :: override
SELECT job_limit, rate, apart, weight FROM holdfast_overrides WHERE kind = ? AND queue = ? AND name = ?

-- :: group_paused
SELECT 1 FROM holdfast_pauses WHERE kind = 'group' AND queue = ? AND name = ?

-- :: paused_tasks
SELECT name FROM holdfast_pauses WHERE kind = 'task'

-- :: tasks_apart
SELECT name, job_limit, rate, apart FROM holdfast_tasks WHERE job_limit IS NOT NULL OR rate IS NOT NULL OR apart = 1

-- :: task_overrides
SELECT name, job_limit, rate, apart FROM holdfast_overrides WHERE kind = 'task'

-- :: tasks_trimmed
SELECT name FROM holdfast_tasks WHERE retain_count IS NOT NULL

-- :: store
INSERT INTO holdfast_overrides (kind, queue, name, job_limit, rate, apart, weight) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, queue, name) DO UPDATE
SET job_limit = excluded.job_limit, rate = excluded.rate, apart = excluded.apart, weight = excluded.weight

-- :: remove
DELETE FROM holdfast_overrides WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, job_limit, rate, apart, weight FROM holdfast_overrides

-- :: count_task
UPDATE holdfast_jobs INDEXED BY holdfast_jobs_running SET counted = 1
WHERE state = 'running' AND worker IS NOT NULL AND task = ? AND counted = 0

-- :: count_queue
UPDATE holdfast_jobs INDEXED BY holdfast_jobs_running SET counted = 1
WHERE state = 'running' AND worker IS NOT NULL AND queue = ? AND counted = 0

-- == pause: of a queue, a group or a task, with who, when and why.

-- :: skip_dead
-- The group continues without the dead jobs that stop it.
UPDATE holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play SET held = 0
WHERE p.queue = ? AND p.grp = ? AND p.state = 'dead' AND @in_play(p)

-- :: store
INSERT INTO holdfast_pauses (kind, queue, name, reason, paused_by, paused_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: remove
DELETE FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast_pauses ORDER BY kind, queue, name

-- :: there
SELECT 1 FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?

-- == slow_down: buckets of queues, groups and tasks: GCRA time of a rate, until when a queue is closed, when to refill.
-- Takes a kind (queue, group, task) and names. A row exists from its first charge or slow-down until prune finds it no
-- longer needed. Safe against concurrent callers: read and written inside the one write transaction of a claim.

-- :: flow
SELECT spent_until, shut_until, wakes_at FROM holdfast_flows WHERE kind = ? AND queue = ? AND name = ?

-- :: spend
INSERT INTO holdfast_flows (kind, queue, name, spent_until, shut_until) VALUES (?, ?, ?, ?, 0.0)
ON CONFLICT (kind, queue, name) DO UPDATE SET spent_until = excluded.spent_until

-- :: shut
INSERT INTO holdfast_flows (kind, queue, name, spent_until, shut_until) VALUES ('queue', ?, '', 0.0, ?)
ON CONFLICT (kind, queue, name) DO UPDATE SET shut_until = max(shut_until, excluded.shut_until)
RETURNING shut_until

-- :: open
UPDATE holdfast_flows SET shut_until = 0.0 WHERE kind = ? AND queue = ? AND name = ? AND kind = 'queue' AND shut_until > ?

-- :: all
SELECT kind, queue, name, spent_until, shut_until, wakes_at FROM holdfast_flows

-- == rearrange: continue what a rule change has left to do, from the position where the last step stopped.
-- Takes that position and a limit; each statement follows an index from there, so a step costs what it reads, not the
-- size of the store. Safe against concurrent callers: jobs and position are written in the one write transaction.

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
    SELECT (SELECT p.grp FROM holdfast_jobs AS p INDEXED BY holdfast_jobs_in_play
            WHERE p.queue = ?1 AND p.grp > ?2 AND @in_play(p) ORDER BY p.grp LIMIT 1))

-- :: newest
SELECT COALESCE(max(seq), 0) FROM holdfast_jobs

-- :: through
SELECT seq FROM holdfast_jobs WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?

-- :: count
UPDATE holdfast_jobs SET counted = 1
WHERE seq > ? AND seq <= ? AND counted = 0 AND state <> 'dead' AND task IN (SELECT value FROM json_each(?))
