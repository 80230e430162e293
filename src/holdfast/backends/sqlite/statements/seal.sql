-- seal: close a store for work, or open it again; compared with what was there and exchanged in one step.
-- Takes the whole record, which only the mover understands. Safe against a rival: one write transaction at a time, and
-- every verb that takes work in or starts it reads `closed` inside its own; a caller's INSERT reads it in one statement.

-- :: record
SELECT record FROM holdfast_seal

-- :: closed
SELECT record FROM holdfast_seal WHERE closed = 1

-- :: store
INSERT INTO holdfast_seal (only, closed, record) VALUES (1, ?, ?)
ON CONFLICT (only) DO UPDATE SET closed = excluded.closed, record = excluded.record

-- :: remove
DELETE FROM holdfast_seal

-- :: content
SELECT (SELECT count(*) FROM holdfast_jobs), (SELECT count(*) FROM holdfast_letters),
       (SELECT count(*) FROM holdfast_overrides), (SELECT count(*) FROM holdfast_pauses),
       (SELECT count(*) FROM holdfast_entries WHERE declared = 0)

-- :: forget_queues
DELETE FROM holdfast_queues

-- :: forget_tasks
DELETE FROM holdfast_tasks

-- :: forget_flows
DELETE FROM holdfast_flows

-- :: forget_entries
DELETE FROM holdfast_entries
