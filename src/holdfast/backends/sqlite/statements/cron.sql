-- cron: cron entries and their ticks.

-- == tick: cron entries, compared by version and replaced in the transaction that enqueues the jobs of the tick.
-- Safe against concurrent callers: one write transaction at a time, and the second caller finds another version.

-- :: entry
SELECT record FROM holdfast_entries WHERE name = ?

-- :: store
INSERT INTO holdfast_entries (name, version, declared, record) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, declared = excluded.declared, record = excluded.record

-- :: remove
DELETE FROM holdfast_entries WHERE name = ?

-- :: state
SELECT state FROM holdfast_jobs WHERE id = ?

-- :: all
SELECT record FROM holdfast_entries ORDER BY name
