-- carry: put rows of another store into this one, as they are.
-- What is there already stays, so a repeated shipment changes nothing. Safe against a rival: the store is sealed, and
-- the rows and the place reached are written in one transaction.

-- :: queue
INSERT INTO holdfast_queues (name, group_limit, group_order, job_limit, rate, group_rate, aging)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: task
INSERT INTO holdfast_tasks (name, job_limit, rate, apart, retain_count, retain_dead, retain_dead_count)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: override
INSERT INTO holdfast_overrides (kind, queue, name, job_limit, rate, apart) VALUES (?, ?, ?, ?, ?, ?)
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
                           turn, rank, lane, prune_at, counted)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
        ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- :: line
INSERT INTO holdfast_logs (job_seq, line, at, text) VALUES (?, ?, ?, ?) ON CONFLICT (job_seq, line) DO NOTHING

-- :: letter
INSERT INTO holdfast_letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at,
                              reason, error, history, cycles, revive_at, revived_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (logical) DO NOTHING

-- :: tick
UPDATE holdfast_ticks SET tick = max(tick, ?)
