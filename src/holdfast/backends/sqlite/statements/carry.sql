-- carry: put rows of another store into this one, as they are.
-- What is there already stays, so a repeated shipment changes nothing. Safe against a rival: the store is sealed, and
-- the rows and the place reached are written in one transaction.

-- :: queue
INSERT INTO holdfast_queues (name, group_limit, group_order) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING

-- :: group
INSERT INTO holdfast_groups (queue, name, group_limit) VALUES (?, ?, ?) ON CONFLICT (queue, name) DO NOTHING

-- :: job
INSERT INTO holdfast_jobs (seq, id, task, queue, state, args, priority, grp, key, attempts, failures, stalls, max_stalls,
                           created_at, due_at, expires_at, started_at, finished_at, fence, begun, held,
                           cancel_requested, progress, progress_text, value, reason, errors, revival, options,
                           shared_stalls, suspect, turn, lane, prune_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
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
