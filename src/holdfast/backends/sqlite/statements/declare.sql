-- declare: a queue's rule for its groups.
-- Takes name, limit, order; the latest word wins. Readers inside a transaction see one rule.

-- :: rule
SELECT group_limit, group_order FROM holdfast_queues WHERE name = ?

-- :: store
INSERT INTO holdfast_queues (name, group_limit, group_order) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET group_limit = excluded.group_limit, group_order = excluded.group_order

-- :: groups_of
SELECT DISTINCT grp FROM holdfast_jobs WHERE queue = ? AND grp IS NOT NULL AND state IN ('waiting', 'ready')

-- :: override
INSERT INTO holdfast_groups (queue, name, group_limit) VALUES (?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE SET group_limit = excluded.group_limit

-- :: forget_override
DELETE FROM holdfast_groups WHERE queue = ? AND name = ?
