-- renew: workers and the single deadline of all their leases.

-- == register: a worker's row, with the single deadline of all its leases.
-- Repeating it renews the deadline and updates queues and slots, nothing else.

-- :: store
INSERT INTO holdfast_workers (id, host, pid, boot_id, pid_namespace, lease_seconds, queues, slots, isolates,
                              started_at, renewed_at, deadline, deadline_boot)
VALUES (:id, :host, :pid, :boot_id, :pid_namespace, :lease_seconds, :queues, :slots, :isolates,
        :now, :now, :steady + :lease_seconds, :boot)
ON CONFLICT (id) DO UPDATE
SET renewed_at = excluded.renewed_at, deadline = :steady + lease_seconds, deadline_boot = excluded.deadline_boot,
    queues = excluded.queues, slots = excluded.slots

-- == renew: move a worker's deadline: one write, however many leases it holds.
-- The row count shows whether the worker is known.

-- :: renewed
SELECT renewed_at, lease_seconds FROM holdfast_workers WHERE id = :id

-- :: deadline
UPDATE holdfast_workers SET deadline = :steady + lease_seconds, deadline_boot = :boot, renewed_at = :now WHERE id = :id

-- :: portrait
INSERT INTO holdfast_portraits (worker, portrait) VALUES (?, ?)
ON CONFLICT (worker) DO UPDATE SET portrait = excluded.portrait

-- :: leases
SELECT id, token, claim_call, cancel_requested, seq, started_at, fence FROM holdfast_jobs INDEXED BY holdfast_jobs_running
WHERE state = 'running' AND worker = ?

-- == command: commands to a worker; answered by the worker, removed with its row by a trigger.

-- :: worker
SELECT 1 FROM holdfast_workers WHERE id = ?

-- :: all
SELECT id, done, record FROM holdfast_commands WHERE worker = ? ORDER BY at, id

-- :: store
INSERT INTO holdfast_commands (worker, id, at, done, record) VALUES (?, ?, ?, 0, ?)

-- :: forget
DELETE FROM holdfast_commands WHERE worker = ? AND id = ?

-- :: answer
UPDATE holdfast_commands SET done = 1, record = ? WHERE worker = ? AND id = ? AND done = 0
