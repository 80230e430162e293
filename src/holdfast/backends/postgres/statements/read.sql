-- read: what is shown to people and programs, as JSON in the shapes of the records. Never writes.

-- :: function_job_record
CREATE OR REPLACE FUNCTION holdfast.job_record(j holdfast.jobs) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('seq', j.seq, 'id', j.id, 'task', j.task, 'queue', j.queue, 'state', j.state,
        'args', holdfast.base64(j.args), 'priority', j.priority, 'group', j.grp, 'key', j.key, 'attempts', j.attempts,
        'failures', j.failures, 'stalls', j.stalls, 'shared_stalls', j.shared_stalls, 'suspect', j.suspect,
        'max_stalls', j.max_stalls, 'created_at', j.created_at, 'due_at', j.due_at, 'expires_at', j.expires_at,
        'started_at', j.started_at, 'finished_at', j.finished_at,
        'fence', j.fence, 'worker', j.worker, 'begun', j.begun, 'held', j.held, 'cancel_requested', j.cancel_requested,
        'progress', j.progress, 'progress_text', j.progress_text, 'value', holdfast.base64(j.value),
        'reason', j.reason, 'errors', coalesce(j.errors, '[]'), 'revival', j.revival,
        'options', holdfast.base64(j.options))
$$

-- :: function_letter_record
CREATE OR REPLACE FUNCTION holdfast.letter_record(l holdfast.letters) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', l.job_id, 'task', l.task, 'queue', l.queue, 'key', l.key, 'group', l.grp,
        'args', holdfast.base64(l.args), 'failure_count', l.failure_count, 'first_failed_at', l.first_failed_at,
        'failed_at', l.failed_at, 'reason', l.reason, 'error', l.error, 'history', l.history, 'cycles', l.cycles,
        'revive_at', l.revive_at, 'revived_at', l.revived_at)
$$

-- :: jobs
SELECT holdfast.job_record(j)::text FROM holdfast.jobs j

-- :: job_beyond
SELECT token, turn, lane, claim_call, prune_at FROM holdfast.jobs ORDER BY seq

-- :: letters
SELECT holdfast.letter_record(l)::text FROM holdfast.letters l

-- :: worker_beyond
SELECT w.id, w.deadline, c.last_call FROM holdfast.workers w JOIN holdfast.calls c ON c.worker = w.id ORDER BY w.id

-- :: all_logs
SELECT j.id, l.at, l.text FROM holdfast.logs l JOIN holdfast.jobs j ON j.seq = l.job_seq ORDER BY l.job_seq, l.line

-- :: count
SELECT queue, state, count(*) FROM holdfast.jobs
WHERE (%(queue)s::text IS NULL OR queue = %(queue)s) GROUP BY queue, state

-- :: logs
SELECT at, text FROM holdfast.logs
WHERE job_seq = (SELECT seq FROM holdfast.jobs WHERE id = %(id)s) ORDER BY line

-- :: queues
SELECT name, group_limit, group_order FROM holdfast.queues ORDER BY name

-- :: overrides
SELECT queue, name, group_limit FROM holdfast.groups ORDER BY queue, name

-- :: pauses
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast.pauses ORDER BY kind, queue, name

-- :: oldest_ready
SELECT queue, min(due_at) FROM holdfast.jobs WHERE state = 'ready' GROUP BY queue

-- :: groups
WITH named AS MATERIALIZED (
    SELECT queue, name FROM (
        SELECT queue, grp AS name FROM holdfast.jobs
        WHERE grp IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready', 'running')
        UNION SELECT queue, name FROM holdfast.groups
        UNION SELECT queue, name FROM holdfast.pauses WHERE kind = 'group') u
    WHERE (%(queue)s::text IS NULL OR queue = %(queue)s) AND %(name)s::text IS NULL
    UNION ALL SELECT %(queue)s, %(name)s WHERE %(name)s::text IS NOT NULL
    ORDER BY queue, name LIMIT %(limit)s)
SELECT n.queue, n.name, l.most, o.group_limit, coalesce(q.group_order, 'strict'),
    (SELECT jsonb_object_agg(c.state, c.number) FROM (
        SELECT state, count(*) AS number FROM holdfast.jobs j WHERE j.queue = n.queue AND j.grp = n.name
        AND state IN ('scheduled', 'waiting', 'ready', 'running') GROUP BY state) c),
    (SELECT id FROM holdfast.jobs j WHERE j.queue = n.queue AND j.grp = n.name
     AND state IN ('scheduled', 'waiting', 'ready', 'running')
     ORDER BY state <> 'running', state <> 'ready', NOT (state = 'scheduled' AND held), state <> 'waiting', held DESC,
              priority DESC, seq LIMIT 1)
FROM named n
CROSS JOIN LATERAL holdfast.limits(ARRAY[ROW(n.queue, n.name)::holdfast.place]) l
LEFT JOIN holdfast.queues q ON q.name = n.queue
LEFT JOIN holdfast.groups o ON o.queue = n.queue AND o.name = n.name
ORDER BY n.queue, n.name

-- :: workers
SELECT jsonb_build_object('id', w.id, 'host', w.host, 'pid', w.pid, 'boot_id', w.boot_id,
    'pid_namespace', w.pid_namespace, 'lease_seconds', w.lease_seconds, 'queues', w.queues, 'slots', w.slots,
    'isolates', w.isolates, 'started_at', w.started_at, 'renewed_at', w.renewed_at, 'expired', w.deadline <= s.now,
    'portrait', holdfast.base64(w.portrait),
    'running', (SELECT count(*) FROM holdfast.jobs j WHERE j.state = 'running' AND j.worker = w.id))::text
FROM holdfast.workers w CROSS JOIN holdfast.store_now(%(now)s) s(now) ORDER BY w.started_at, w.id

-- :: at_hand
SELECT CASE WHEN EXISTS (
    SELECT 1 FROM unnest(%(queues)s::text[]) q(name)
    WHERE NOT EXISTS (SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'queue' AND p.queue = q.name)
      AND EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = q.name AND j.lane IN (0, 1)))
THEN 0 ELSE (SELECT min(due_at) FROM holdfast.jobs WHERE state = 'scheduled') - holdfast.store_now(NULL) END
