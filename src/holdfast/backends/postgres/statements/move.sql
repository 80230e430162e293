-- move: seal, export and carry: moving a store's contents to another store.

-- == seal: close a store for work, or open it again; compare-and-change on the previous seal, in one transaction.
-- Concurrency: the row is locked FOR UPDATE, which waits for every caller's transaction that enqueued (each holds it
-- FOR KEY SHARE until it ends, see function_stay_open); then the rules lock is taken exclusively, which waits for all
-- our own transactions in progress. Later ones read `closed` in a statement after their lock, and see the new seal. The
-- row is locked before the rules, so that no worker waits for a caller's long transaction.

-- :: record
SELECT record FROM holdfast.seal WHERE record IS NOT NULL

-- :: take
SELECT record FROM holdfast.seal FOR UPDATE

-- :: alone
SELECT holdfast.own_rules()

-- :: store
UPDATE holdfast.seal SET closed = %(closed)s, record = %(record)s

-- :: content
SELECT (SELECT count(*) FROM holdfast.jobs), (SELECT count(*) FROM holdfast.letters),
       (SELECT count(*) FROM holdfast.overrides), (SELECT count(*) FROM holdfast.pauses),
       (SELECT count(*) FROM holdfast.entries WHERE NOT declared)

-- :: forget_rules
WITH q AS (DELETE FROM holdfast.queues), t AS (DELETE FROM holdfast.tasks), b AS (DELETE FROM holdfast.bounds),
     f AS (DELETE FROM holdfast.flows), r AS (DELETE FROM holdfast.retained), i AS (DELETE FROM holdfast.ids),
     m AS (DELETE FROM holdfast.remembered)
DELETE FROM holdfast.entries

-- :: function_refuse_sealed
CREATE OR REPLACE FUNCTION holdfast.refuse_sealed() RETURNS void LANGUAGE plpgsql AS $$
DECLARE facts text;
BEGIN  -- the caller holds the rules lock, shared or exclusive
    SELECT record INTO facts FROM holdfast.seal WHERE closed AND NOT holdfast.is_settling();
    IF FOUND THEN PERFORM holdfast.refuse('HF005', facts::jsonb); END IF;
END $$

-- :: function_stay_open
-- In a caller's transaction, before its first job: keep the store open until that transaction ends, or refuse.
-- A row lock, not an advisory one: a caller's older snapshot could hide a new seal; locking the row then fails.
CREATE OR REPLACE FUNCTION holdfast.stay_open() RETURNS void LANGUAGE plpgsql AS $$
DECLARE s holdfast.seal;
BEGIN
    SELECT * INTO s FROM holdfast.seal FOR KEY SHARE;
    IF s.closed THEN PERFORM holdfast.refuse('HF005', s.record::jsonb); END IF;
END $$

-- == export: pages of the store in a stable order, as JSON in the shapes of the records. Never writes.
-- Takes the position to continue after and a limit.

-- :: jobs
SELECT holdfast.job_record(j)::text, (
    SELECT coalesce(json_agg(json_build_object('at', l.at, 'text', l.text) ORDER BY l.line), '[]')
    FROM holdfast.logs l WHERE l.job_seq = j.seq)::text, j.marks::text
FROM (SELECT * FROM holdfast.jobs WHERE seq > %(after)s::bigint ORDER BY seq LIMIT %(limit)s) j ORDER BY j.seq

-- :: letters
SELECT holdfast.letter_record(l)::text
FROM (SELECT * FROM holdfast.letters WHERE job_id > %(after)s ORDER BY job_id LIMIT %(limit)s) l ORDER BY l.job_id

-- :: tick
SELECT last_value FROM holdfast.ticks

-- == carry: insert rows of another store as they are, from JSON in the shapes of the records. Existing rows stay, so a
-- repeated shipment changes nothing. Concurrency: the seal's row is locked first, and the rows and the position reached
-- are written in one transaction.

-- :: rules
WITH q AS (
    INSERT INTO holdfast.queues SELECT r.* FROM holdfast.rules_of(%(queues)s::jsonb) r ON CONFLICT (name) DO NOTHING
), t AS (
    INSERT INTO holdfast.tasks SELECT r.* FROM holdfast.tasks_of(%(tasks)s::jsonb) r ON CONFLICT (name) DO NOTHING
), o AS (
    INSERT INTO holdfast.overrides (kind, queue, name, job_limit, rate, apart, weight)
    SELECT CASE WHEN r.task IS NOT NULL THEN 'task' WHEN r."group" IS NOT NULL THEN 'group' ELSE 'queue' END,
           coalesce(r.queue, ''), coalesce(r.task, r."group", ''), r."limit", r.rate,
           r.apart, r.weight
    FROM jsonb_to_recordset(%(overrides)s::jsonb)
        AS r(queue text, "group" text, task text, "limit" integer, rate holdfast.rate, apart boolean,
             weight integer)
    ON CONFLICT DO NOTHING
), f AS (
    INSERT INTO holdfast.flows (kind, queue, name, spent_until, shut_until, wakes_at)
    SELECT CASE WHEN r.task IS NOT NULL THEN 'task' WHEN r."group" IS NOT NULL THEN 'group' ELSE 'queue' END,
           coalesce(r.queue, ''), coalesce(r.task, r."group", ''), r.spent_until, r.shut_until, r.wakes_at
    FROM jsonb_to_recordset(%(flows)s::jsonb) AS r(queue text, "group" text, task text, spent_until double precision,
        shut_until double precision, wakes_at double precision)
    ON CONFLICT DO NOTHING
), e AS (
    INSERT INTO holdfast.entries (name, version, declared, record)
    SELECT r ->> 'name', (r ->> 'version')::bigint, (r ->> 'declared')::boolean, r
    FROM jsonb_array_elements(%(entries)s::jsonb) r ON CONFLICT (name) DO NOTHING
)
INSERT INTO holdfast.pauses (kind, queue, name, reason, paused_by, paused_at)
SELECT CASE WHEN p.task IS NOT NULL THEN 'task' WHEN p."group" IS NOT NULL THEN 'group' ELSE 'queue' END,
       coalesce(p.queue, ''), coalesce(p.task, p."group", ''), p.reason, p."by", p.paused_at
FROM jsonb_to_recordset(%(pauses)s::jsonb)
    AS p(queue text, "group" text, task text, reason text, "by" text, paused_at double precision)
ON CONFLICT DO NOTHING

-- :: bind
SELECT (SELECT count(holdfast.bind_queue(q.name)) FROM (SELECT name FROM holdfast.queues UNION
            SELECT queue FROM holdfast.overrides WHERE kind <> 'task') q),
       (SELECT count(holdfast.bind_task(t.name, 1000)) FROM (SELECT name FROM holdfast.tasks UNION
            SELECT name FROM holdfast.overrides WHERE kind = 'task') t)

-- :: jobs
WITH named AS (
    INSERT INTO holdfast.ids (id, seq)
    SELECT r.id, r.seq FROM jsonb_to_recordset(%(jobs)s::jsonb) AS r(id text, seq bigint) ON CONFLICT DO NOTHING RETURNING seq
)
INSERT INTO holdfast.jobs (seq, id, task, queue, state, priority, grp, key, lane, turn, attempts, failures, stalls,
    max_stalls, created_at, due_at, expires_at, started_at, finished_at, prune_at, fence, begun, held, cancel_requested,
    progress, progress_text, reason, args, value, errors, revival, options, shared_stalls, suspect, rank, holds_key,
    key_global, key_until_started, key_window, due_max, drop_expired, ordinal, marks)
SELECT r.seq, r.id, r.task, r.queue, r.state, r.priority, r."group", r.key,
    CASE WHEN r.lane < 3 THEN r.lane ELSE coalesce((SELECT b.lane FROM holdfast.bounds b
                                                    WHERE b.kind = 'task' AND b.name = r.task), 3) END, r.turn, r.attempts, r.failures,
    r.stalls, r.max_stalls, r.created_at, r.due_at, r.expires_at, r.started_at, r.finished_at, r.prune_at, r.fence,
    r.begun, r.held, r.cancel_requested, r.progress, r.progress_text, r.reason, decode(r.args, 'base64'),
    decode(r.value, 'base64'), nullif(r.errors, '[]'), r.revival, decode(r.options, 'base64'),
    r.shared_stalls, r.suspect, r.rank, r.holds_key, r.key_scope = 'global', r.key_until = 'started', r.key_window,
    r.due_max, r.on_expire = 'drop', r."order", nullif(r.marks, '[]')
FROM jsonb_to_recordset(%(jobs)s::jsonb) AS r(seq bigint, id text, task text, queue text, state text, priority integer,
    "group" text, key text, lane smallint, turn bigint, attempts integer, failures integer, stalls integer,
    max_stalls integer, created_at double precision, due_at double precision, expires_at double precision,
    started_at double precision, finished_at double precision, prune_at double precision, fence bigint, begun boolean,
    held boolean, cancel_requested boolean, progress double precision, progress_text text, reason text, args text,
    value text, errors jsonb, revival jsonb, options text, shared_stalls integer, suspect boolean, rank integer,
    holds_key boolean, key_scope text, key_until text, key_window double precision, due_max double precision,
    on_expire text, "order" bigint, marks jsonb)
WHERE r.seq IN (SELECT named.seq FROM named) ORDER BY r.seq

-- :: retain
SELECT holdfast.retain(ARRAY(SELECT r.seq FROM jsonb_to_recordset(%(jobs)s::jsonb) AS r(seq bigint, state text)
                             WHERE r.state IN ('succeeded', 'cancelled')))

-- :: lines
INSERT INTO holdfast.logs (job_seq, line, at, text)
SELECT r.seq, l.n, (l.line ->> 'at')::double precision, l.line ->> 'text'
FROM jsonb_to_recordset(%(jobs)s::jsonb) AS r(seq bigint, logs jsonb)
CROSS JOIN LATERAL jsonb_array_elements(r.logs) WITH ORDINALITY l(line, n)
ON CONFLICT (job_seq, line) DO NOTHING

-- :: letters
INSERT INTO holdfast.letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at,
    reason, error, history, cycles, revive_at, revived_at)
SELECT CASE WHEN r.key IS NULL THEN 'id:' || r.id ELSE 'key:' || jsonb_build_array(r.queue, r.task, r.key)::text END,
    r.id, r.task, r.queue, r.key, r."group", decode(r.args, 'base64'), r.failure_count, r.first_failed_at, r.failed_at,
    r.reason, r.error, r.history, r.cycles, r.revive_at, r.revived_at
FROM jsonb_to_recordset(%(letters)s::jsonb) AS r(id text, task text, queue text, key text, "group" text, args text,
    failure_count integer, first_failed_at double precision, failed_at double precision, reason text, error jsonb,
    history jsonb, cycles integer, revive_at double precision, revived_at double precision)
ON CONFLICT (logical) DO NOTHING

-- :: counters
SELECT setval('holdfast.ticks', greatest(%(tick)s, (SELECT last_value FROM holdfast.ticks))),
       (SELECT setval(pg_get_serial_sequence('holdfast.jobs', 'seq'), max(seq)) FROM holdfast.jobs
        HAVING max(seq) IS NOT NULL)
