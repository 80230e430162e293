-- slow_down: buckets of queues, groups and tasks: when a rate is paid off, until when a queue is shut, when to refill.
-- Takes a kind (queue, group, task) and names. A row is there from its first charge or slow-down until prune finds it
-- silent. Safe against a rival: read and written inside the one write transaction of a claim.

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
