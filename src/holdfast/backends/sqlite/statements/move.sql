-- move: export a store's contents, import them, and seal the store for that.

-- == seal: close a store for work, or open it again: compare-and-change in one step. Takes the whole record, which only
-- the mover interprets. Safe against concurrent callers: one write transaction at a time, and every verb that accepts
-- or starts work reads `closed` inside its own; an INSERT in a caller's transaction checks it in the same statement.

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

-- == export: pieces of the store in a stable order, for another store. Never writes.
-- Takes the position to continue after and a limit; returns rows in the same shape as read.sql.

-- :: jobs
SELECT seq, id, task, queue, state, @args(holdfast_jobs), priority, grp, key, attempts, failures, stalls, max_stalls, created_at,
       due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
       progress_text, value, reason, errors, revival, options, shared_stalls, suspect, holds_key,
       key_queue, key_started, key_window, due_max, dropped, ordinal, turn, rank, lane, prune_at, marks
FROM holdfast_jobs WHERE seq > ? ORDER BY seq LIMIT ?

-- :: logs
SELECT job_seq, at, text FROM holdfast_logs WHERE job_seq > ? AND job_seq <= ? ORDER BY job_seq, line

-- :: tick
SELECT COALESCE(max(CAST(seq AS INTEGER)), 0) FROM sqlite_sequence WHERE name = 'holdfast_ticks'

-- == carry: insert rows of another store as they are.
-- Existing rows stay, so a repeated shipment changes nothing. Safe against concurrent callers: the store is sealed, and
-- the rows and the position are written in one transaction.

-- :: queue
INSERT INTO holdfast_queues (name, group_limit, group_order, job_limit, rate, group_rate, aging, on_dead,
                             order_window, dead_queue)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: task
INSERT INTO holdfast_tasks (name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: override
INSERT INTO holdfast_overrides (kind, queue, name, job_limit, rate, apart, weight) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, queue, name) DO NOTHING

-- :: flow
INSERT INTO holdfast_flows (kind, queue, name, spent_until, shut_until, wakes_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, queue, name) DO NOTHING

-- :: entry
INSERT INTO holdfast_entries (name, version, declared, record) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: job
INSERT INTO holdfast_jobs (seq, id, task, queue, state, args, priority, grp, key, attempts, failures, stalls,
                           max_stalls, created_at, due_at, expires_at, started_at, finished_at, fence, begun, held,
                           cancel_requested, progress, progress_text, value, reason, errors, revival, options,
                           shared_stalls, suspect, holds_key, key_queue, key_started, key_window, due_max, dropped,
                           ordinal, turn, rank, lane, prune_at, marks, counted, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
        ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- :: body
INSERT OR REPLACE INTO holdfast_bodies (seq, args) SELECT seq, ? FROM holdfast_jobs WHERE seq = ? AND id = ?

-- :: line
INSERT INTO holdfast_logs (job_seq, line, at, text) VALUES (?, ?, ?, ?) ON CONFLICT (job_seq, line) DO NOTHING

-- :: letter
INSERT INTO holdfast_letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at,
                              reason, error, history, cycles, revive_at, revived_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (logical) DO NOTHING

-- :: tick
UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'holdfast_ticks'
