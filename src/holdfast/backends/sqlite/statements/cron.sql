-- cron: cron entries and their ticks.

-- == tick: cron entries. Compared by version and exchanged in the transaction that enqueues the jobs of the tick.
-- Safe against a rival: one write transaction at a time, and whoever comes second finds another version.

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
