-- declare: the rules of queues and tasks, as the code has them.
-- Takes a whole rule; the latest word wins. Readers inside a transaction see one rule.

-- :: rule
SELECT name, group_limit, group_order, job_limit, rate, group_rate, aging FROM holdfast_queues WHERE name = ?

-- :: store
INSERT INTO holdfast_queues (name, group_limit, group_order, job_limit, rate, group_rate, aging)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET group_limit = excluded.group_limit, group_order = excluded.group_order, job_limit = excluded.job_limit,
    rate = excluded.rate, group_rate = excluded.group_rate, aging = excluded.aging

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
