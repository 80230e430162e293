-- renew: workers and the deadline that all leases of a worker share.

-- == register: create a worker's row, with the deadline that all its leases share.
-- Repeating it renews the deadline and updates queues and slots, nothing else.

-- :: call
WITH numbered AS (INSERT INTO holdfast.calls (worker) VALUES (%(id)s) ON CONFLICT DO NOTHING
), longest AS (UPDATE holdfast.incarnation SET lease_max = %(lease_seconds)s WHERE lease_max < %(lease_seconds)s)
INSERT INTO holdfast.workers AS w (id, host, pid, boot_id, pid_namespace, lease_seconds, queues, slots, isolates,
                              started_at, renewed_at, deadline)
SELECT %(id)s, %(host)s, %(pid)s, %(boot_id)s, %(pid_namespace)s, %(lease_seconds)s, %(queues)s::jsonb, %(slots)s,
       %(isolates)s, s.now, s.now, s.now + %(lease_seconds)s
FROM holdfast.store_now(%(now)s) s(now)
ON CONFLICT (id) DO UPDATE SET renewed_at = excluded.renewed_at, deadline = excluded.renewed_at + w.lease_seconds,
                               queues = excluded.queues, slots = excluded.slots

-- == renew: extend a worker's deadline; one write however many leases it holds.
-- The deadline is written first and waits for no lock. Leases of seen claims that are not named are released.

-- :: call
SELECT holdfast.renew(%(worker)s, %(held)s::jsonb, %(seen)s, %(portrait)s::bytea, %(now)s)::text

-- :: function_renew
CREATE OR REPLACE FUNCTION holdfast.renew(renewing text, held jsonb, seen bigint, shown bytea, given double precision)
RETURNS jsonb LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    unnamed jsonb;
    answer jsonb;
    elsewhere text[];
    before double precision;
    lease double precision;
BEGIN
    UPDATE holdfast.workers w SET deadline = at + w.lease_seconds, renewed_at = at,
                                  portrait = coalesce(shown, w.portrait)
    FROM (SELECT o.renewed_at FROM holdfast.workers o WHERE o.id = renewing) o
    WHERE w.id = renewing RETURNING o.renewed_at, w.lease_seconds INTO before, lease;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('known', false, 'lost',
            (SELECT coalesce(jsonb_agg(h -> 'id'), '[]') FROM jsonb_array_elements(held) h));
    END IF;
    WITH named AS MATERIALIZED (
        SELECT h.value ->> 'id' AS id, h.value ->> 'token' AS token, h.ordinality AS n
        FROM jsonb_array_elements(held) WITH ORDINALITY h
    ), ours AS MATERIALIZED (
        SELECT j.id, j.token, j.claim_call, j.cancel_requested, j.seq FROM holdfast.jobs j
        WHERE j.state = 'running' AND j.worker = renewing
    )
    SELECT jsonb_build_object(
               'lost', coalesce(jsonb_agg(n.id ORDER BY n.n) FILTER (WHERE n.id IS NOT NULL AND o.id IS NULL), '[]'),
               'cancelled', coalesce(jsonb_agg(n.id ORDER BY n.n)
                                     FILTER (WHERE n.id IS NOT NULL AND o.cancel_requested), '[]')),
           jsonb_agg(jsonb_build_object('id', o.id, 'token', o.token, 'delay', 0) ORDER BY o.seq)
               FILTER (WHERE n.id IS NULL AND o.claim_call <= seen)
    INTO answer, unnamed
    FROM named n FULL JOIN ours o ON o.id = n.id AND o.token = n.token;
    answer := holdfast.with_commands(answer, renewing);
    IF unnamed IS NOT NULL THEN
        PERFORM holdfast.share_rules();
        elsewhere := holdfast.release_unseen(unnamed, at);
        answer := answer || jsonb_build_object('released', (SELECT coalesce(jsonb_agg(u -> 'id'), '[]')
            FROM jsonb_array_elements(unnamed) u WHERE u ->> 'token' <> ALL (elsewhere)));
    END IF;
    IF at - before > lease / 2 THEN PERFORM holdfast.note_late(renewing, held, before, lease, at); END IF;
    RETURN answer;
END $$

-- :: function_note_late
-- The renewal came late: note it in the timelines of the leases it names (formulas.renewal_gap). It is the last thing a
-- renewal does and leaves out rows that are locked, so it waits for nobody and nobody waits for it in turn.
CREATE OR REPLACE FUNCTION holdfast.note_late(renewing text, named jsonb, before double precision,
    lease double precision, at double precision) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.jobs SET marks = holdfast.with_note(marks, 'renewal', jsonb_build_object(
        'worker', worker, 'fence', fence, 'gap', at - greatest(before, started_at)), at)
    WHERE seq = ANY (ARRAY(
        SELECT j.seq FROM holdfast.jobs j
        WHERE j.state = 'running' AND j.worker = renewing AND at - greatest(before, j.started_at) > lease / 2
          AND j.token IN (SELECT h.value ->> 'token' FROM jsonb_array_elements(named) h)
        FOR UPDATE SKIP LOCKED))
$$

-- == retire: a worker has ended: release its leases at no cost and remove its row.

-- :: call
SELECT holdfast.retire(%(worker)s, %(now)s)::text

-- :: function_retire
CREATE OR REPLACE FUNCTION holdfast.retire(leaving text, given double precision) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    places holdfast.place[];
    j holdfast.jobs;
    number integer := 0;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM 1 FROM holdfast.workers WHERE id = leaving FOR UPDATE;
    places := holdfast.places_stalled(ARRAY[leaving], NULL);
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    FOR j IN SELECT * FROM holdfast.jobs WHERE state = 'running' AND worker = leaving ORDER BY seq FOR UPDATE LOOP
        PERFORM holdfast.give_back(j, 0, at);
        number := number + 1;
    END LOOP;
    DELETE FROM holdfast.workers WHERE id = leaving;
    DELETE FROM holdfast.calls WHERE worker = leaving;
    PERFORM holdfast.refill_groups(places, at);
    RETURN number;
END $$

-- == command: commands to a worker; answered by the worker, removed with its row (ON DELETE CASCADE).
-- Concurrency: the worker's row is locked FOR KEY SHARE, which does not conflict with its renewals.

-- :: call
SELECT holdfast.command(%(worker)s, %(command)s::jsonb, %(now)s)::text

-- :: answer
SELECT holdfast.answer(%(worker)s, %(id)s, %(told)s::jsonb, %(now)s)

-- :: all
SELECT record::text FROM holdfast.commands WHERE worker = %(worker)s ORDER BY at, id

-- :: function_command
CREATE OR REPLACE FUNCTION holdfast.command(named text, asked jsonb, given double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    known jsonb;
    excess integer;
BEGIN
    PERFORM 1 FROM holdfast.workers WHERE id = named FOR KEY SHARE;
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'worker')); END IF;
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.commands'), hashtext(named));
    SELECT c.record INTO known FROM holdfast.commands c WHERE c.worker = named AND c.id = asked ->> 'id';
    IF FOUND THEN RETURN known; END IF;
    excess := (SELECT count(*) FROM holdfast.commands c WHERE c.worker = named) + 1 - @COMMANDS_KEPT_MAX;
    IF excess > (SELECT count(*) FROM holdfast.commands c WHERE c.worker = named AND c.done) THEN
        PERFORM holdfast.refuse('HF007', jsonb_build_object('worker', named));
    END IF;
    DELETE FROM holdfast.commands WHERE worker = named AND id = ANY (ARRAY(
        SELECT c.id FROM holdfast.commands c WHERE c.worker = named AND c.done ORDER BY c.at, c.id
        LIMIT greatest(0, excess)));
    known := asked || jsonb_build_object('at', at);
    INSERT INTO holdfast.commands (worker, id, at, done, record) VALUES (named, asked ->> 'id', at, false, known);
    RETURN known;
END $$

-- :: function_answer
CREATE OR REPLACE FUNCTION holdfast.answer(named text, command_id text, told jsonb, given double precision)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.commands
    SET done = true, record = record || told || jsonb_build_object('done_at', holdfast.store_now(given))
    WHERE worker = named AND id = command_id AND NOT done;
    RETURN FOUND;
END $$

-- :: function_with_commands
-- The reply to a renewal, with the commands that the worker has not answered.
CREATE OR REPLACE FUNCTION holdfast.with_commands(reply jsonb, named text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.commands c WHERE c.worker = named AND NOT c.done) THEN RETURN reply; END IF;
    RETURN reply || jsonb_build_object('commands', (
        SELECT jsonb_agg(c.record ORDER BY c.at, c.id) FROM holdfast.commands c WHERE c.worker = named AND NOT c.done));
END $$
