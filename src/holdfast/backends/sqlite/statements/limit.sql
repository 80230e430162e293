-- limit: what is in force: the rules of queues and tasks, and an operator's word, which beats them.
-- Takes a kind (queue, group, task) and names; answers limits as numbers, rates as JSON. Safe against a rival: read and
-- written inside the one write transaction, with the jobs that change their place because of it.

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
       (SELECT record FROM holdfast_seal WHERE closed = 1),
       COALESCE((SELECT tick FROM holdfast_ticks), 0)

-- :: store_tick
INSERT INTO holdfast_ticks (only, tick) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET tick = excluded.tick

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
SELECT group_order, group_limit, group_rate, aging, job_limit, rate FROM holdfast_queues WHERE name = ?

-- :: override
SELECT job_limit, rate, apart FROM holdfast_overrides WHERE kind = ? AND queue = ? AND name = ?

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
INSERT INTO holdfast_overrides (kind, queue, name, job_limit, rate, apart) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, queue, name) DO UPDATE
SET job_limit = excluded.job_limit, rate = excluded.rate, apart = excluded.apart

-- :: remove
DELETE FROM holdfast_overrides WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, job_limit, rate, apart FROM holdfast_overrides

-- :: count_task
UPDATE holdfast_jobs INDEXED BY holdfast_jobs_running SET counted = 1
WHERE state = 'running' AND worker IS NOT NULL AND task = ? AND counted = 0

-- :: count_queue
UPDATE holdfast_jobs INDEXED BY holdfast_jobs_running SET counted = 1
WHERE state = 'running' AND worker IS NOT NULL AND queue = ? AND counted = 0
