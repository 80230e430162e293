-- register: a worker's row, with the one deadline of all its leases.
-- Repeating it renews the deadline and changes nothing else.

-- :: call
WITH numbered AS (INSERT INTO holdfast.calls (worker) VALUES (%(id)s) ON CONFLICT DO NOTHING)
INSERT INTO holdfast.workers (id, host, pid, boot_id, pid_namespace, lease_seconds, queues, slots, started_at,
                              renewed_at, deadline)
SELECT %(id)s, %(host)s, %(pid)s, %(boot_id)s, %(pid_namespace)s, %(lease_seconds)s, %(queues)s::jsonb, %(slots)s,
       s.now, s.now, s.now + %(lease_seconds)s
FROM holdfast.store_now(%(now)s) s(now)
ON CONFLICT (id) DO UPDATE SET renewed_at = excluded.renewed_at, deadline = excluded.deadline
