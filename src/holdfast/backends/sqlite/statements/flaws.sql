-- flaws: finds unreadable rows and sets them aside.

-- == flaws: what is unreadable, and what contradicts its index. Never writes.

-- :: letters
SELECT job_id, error, history FROM holdfast_letters

-- :: workers
SELECT id, queues FROM holdfast_workers

-- :: entries
SELECT name, record FROM holdfast_entries

-- :: rates
SELECT 'queues', name, 'rate', rate FROM holdfast_queues WHERE rate IS NOT NULL
UNION ALL SELECT 'queues', name, 'group_rate', group_rate FROM holdfast_queues WHERE group_rate IS NOT NULL
UNION ALL SELECT 'tasks', name, 'rate', rate FROM holdfast_tasks WHERE rate IS NOT NULL
UNION ALL SELECT 'overrides', IIF(kind = 'queue', queue, name), 'rate', rate FROM holdfast_overrides
          WHERE rate IS NOT NULL

-- :: orders
SELECT name FROM holdfast_queues WHERE group_order NOT IN ('strict', 'relaxed') OR group_limit < 1

-- :: ticks
SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_ticks'

-- :: parts
SELECT type, name FROM sqlite_master WHERE type IN ('table', 'index', 'trigger') AND name LIKE 'holdfast_%'

-- :: integrity
PRAGMA integrity_check(holdfast_jobs)

-- == quarantine: unreadable rows, moved out of the way.

-- :: keep
INSERT INTO holdfast_quarantine (place, name, fields, at, record) VALUES (?, ?, ?, ?, ?)

-- :: body
SELECT args FROM holdfast_bodies WHERE seq = ?

-- :: all
SELECT place, name, fields FROM holdfast_quarantine ORDER BY id LIMIT ?
