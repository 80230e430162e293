-- renew: workers and the deadline that all leases of a worker share.

-- == register: create a worker's row, with the deadline that all its leases share.
-- Repeating it renews the deadline and updates queues and slots, nothing else.
-- Also here: how a store detects that it may have lost writes, and for how long it then hands out no jobs.

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

-- :: function_timeline
CREATE OR REPLACE FUNCTION holdfast.timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN  -- the WAL timeline, which changes when a server is promoted or restored to a point in time
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN OTHERS THEN RETURN 0;  -- a hosted service that hides it
END $$

-- :: function_quiet_seconds
-- After a failover to an asynchronous replica, the latest claims and renewals may be missing here while their handlers
-- run. For the longest lease duration, no job is claimed and no worker is declared dead: by then every worker has
-- renewed and learned which of its leases are lost, or has stopped its handlers because it could not renew.
CREATE OR REPLACE FUNCTION holdfast.quiet_seconds(at double precision) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    last holdfast.incarnation;
    line bigint := holdfast.timeline();
BEGIN
    SELECT * INTO last FROM holdfast.incarnation;
    IF NOT FOUND THEN  -- somebody deleted the row: assume the worst
        INSERT INTO holdfast.incarnation (timeline, lease_max)
        SELECT line - 1, greatest(30, max(w.lease_seconds)) FROM holdfast.workers w RETURNING * INTO last;
    END IF;
    IF last.timeline = line THEN RETURN greatest(0, last.quiet_until - at); END IF;
    UPDATE holdfast.incarnation SET timeline = line, quiet_until = at + lease_max WHERE timeline <> line;
    RETURN last.lease_max;
END $$

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
BEGIN
    UPDATE holdfast.workers SET deadline = at + lease_seconds, renewed_at = at, portrait = coalesce(shown, portrait)
    WHERE id = renewing;
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
    IF unnamed IS NULL THEN RETURN answer; END IF;
    PERFORM holdfast.share_rules();
    elsewhere := holdfast.release_unseen(unnamed, at);
    RETURN answer || jsonb_build_object('released', (SELECT coalesce(jsonb_agg(u -> 'id'), '[]')
        FROM jsonb_array_elements(unnamed) u WHERE u ->> 'token' <> ALL (elsewhere)));
END $$
