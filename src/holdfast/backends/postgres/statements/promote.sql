-- promote: process what is due: scheduled jobs, expiries, automatic revivals.
-- One bound for all three together. Groups (and the keys of dead letters) are collected and locked first; jobs in
-- groups that are not locked are skipped. Only the first `most` due rows are ever examined, whether or not they can be
-- processed. Concurrency: one transaction promotes at a time. A claim that finds another one promoting continues
-- without; if they competed for the same rows, each would read all rows the others took before it found its own.

-- :: call
SELECT holdfast.promote(%(limit)s, %(now)s)::text

-- :: function_any_due
CREATE OR REPLACE FUNCTION holdfast.any_due(flowing boolean, at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- usually false: then a claim skips the rest
    RETURN EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
        OR EXISTS (SELECT 1 FROM holdfast.jobs WHERE expires_at <= at AND expires_at IS NOT NULL
                   AND state IN ('scheduled', 'waiting', 'ready'))
        OR EXISTS (SELECT 1 FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM holdfast.propagating)
        OR flowing AND EXISTS (SELECT 1 FROM holdfast.flows WHERE wakes_at <= at AND wakes_at IS NOT NULL);
END $$

-- :: function_try_promote
CREATE OR REPLACE FUNCTION holdfast.try_promote() RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(hashtext('holdfast.promote'), 0)
$$

-- :: function_lock_letters_due
CREATE OR REPLACE FUNCTION holdfast.lock_letters_due(most integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.lock_keys(array_agg(k.name)) FROM (
        SELECT job_id FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL
        ORDER BY revive_at LIMIT most) l
    JOIN holdfast.ids i ON i.id = l.job_id JOIN holdfast.jobs j ON j.seq = i.seq CROSS JOIN LATERAL unnest(holdfast.key_names(j)) k(name)
    HAVING count(*) > 0;
END $$

-- :: function_places_due
CREATE OR REPLACE FUNCTION holdfast.places_due(most integer, at double precision)
RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (WITH expired AS MATERIALIZED (
        SELECT queue, grp FROM holdfast.jobs
        WHERE expires_at <= at AND expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready')
        ORDER BY expires_at LIMIT most
    ), due AS MATERIALIZED (
        SELECT queue, grp FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at ORDER BY due_at, seq LIMIT most
    ), letters AS MATERIALIZED (
        SELECT queue, grp FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL
        ORDER BY revive_at LIMIT most - least(most, (SELECT count(*) FROM expired) + (SELECT count(*) FROM due))
    ), flows AS MATERIALIZED (
        SELECT queue, name AS grp FROM holdfast.flows WHERE wakes_at <= at AND wakes_at IS NOT NULL
        ORDER BY wakes_at LIMIT most
    ), released AS MATERIALIZED (
        SELECT c.queue, c.grp FROM holdfast.propagating p JOIN holdfast.edges e ON e.parent = p.parent AND e.status < 2
        JOIN holdfast.ids i ON i.id = e.child JOIN holdfast.jobs c ON c.seq = i.seq
        ORDER BY p.number, e.status, e.child LIMIT most)
    SELECT array_agg(DISTINCT ROW(f.queue, f.grp)::holdfast.place)
    FROM (TABLE expired UNION ALL TABLE due UNION ALL TABLE letters UNION ALL TABLE flows UNION ALL TABLE released) f WHERE f.grp IS NOT NULL);
END $$

-- :: function_promote_due
CREATE OR REPLACE FUNCTION holdfast.promote_due(most integer, places holdfast.place[], at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    expired integer;
    due integer;
    letters integer;
    revived integer;
    woken integer := 0;
    told integer;
    unfinished boolean := false;  -- there may be more to propagate
BEGIN
    IF EXISTS (SELECT FROM holdfast.propagating) THEN
        told := holdfast.propagate(least(most, @PROPAGATE_MAX), at);
        unfinished := told >= least(most, @PROPAGATE_MAX);
        most := greatest(0, most - told);
    END IF;
    expired := holdfast.end_expired(most, places, at);
    due := holdfast.promote_scheduled(most - expired, places, at);
    SELECT r.letters, r.revived INTO letters, revived FROM holdfast.revive_due(most - expired - due, places, at) r;
    IF places IS NOT NULL THEN
        UPDATE holdfast.flows f SET wakes_at = NULL FROM unnest(places) p
        WHERE f.kind = 'group' AND f.queue = p.queue AND f.name = p.grp AND f.wakes_at <= at;
        GET DIAGNOSTICS woken = ROW_COUNT;
    END IF;
    IF expired + revived > 0 THEN PERFORM holdfast.tell(at); END IF;
    IF due + expired + revived + woken > 0 THEN PERFORM holdfast.refill_groups(places, at); END IF;
    RETURN jsonb_build_object('due', due, 'expired', expired, 'revived', revived,
                              'more', unfinished OR expired + due + letters >= most);
END $$

-- :: function_end_expired
CREATE OR REPLACE FUNCTION holdfast.end_expired(most integer, places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    number integer := 0;
    ended jsonb := '[]';  -- queue and task of each: no worker counts them (R67)
BEGIN
    FOR j IN WITH first AS MATERIALIZED (
                 SELECT seq FROM holdfast.jobs
                 WHERE expires_at <= at AND expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready')
                 ORDER BY expires_at LIMIT most)
             SELECT e.* FROM first f JOIN holdfast.jobs e ON e.seq = f.seq
             WHERE e.expires_at <= at AND CASE WHEN e.state IN ('scheduled', 'waiting', 'ready') THEN true END
               AND (e.grp IS NULL OR ROW(e.queue, e.grp)::holdfast.place = ANY (places))
             ORDER BY e.expires_at FOR UPDATE OF e SKIP LOCKED LOOP
        IF j.drop_expired THEN
            PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, 'expired', 86400, at);
        ELSE
            PERFORM holdfast.kill(j, 'expired', 'text:expired', at);
        END IF;
        number := number + 1;
        ended := ended || jsonb_build_array(jsonb_build_array(j.queue, j.task));
    END LOOP;
    IF number > 0 THEN
        PERFORM holdfast.roll_up((SELECT jsonb_agg(c) FROM (
            SELECT e ->> 0 AS queue, e ->> 1 AS task, 'expired' AS outcome, count(*) AS count
            FROM jsonb_array_elements(ended) e GROUP BY 1, 2) c), at);
    END IF;
    RETURN number;
END $$

-- :: fragment aging_in_bulk(queue)
-- The aging of a job's queue; it is looked up only for queues that have one.
CASE WHEN @queue = ANY (ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.aging IS NOT NULL))
     THEN (SELECT b.aging FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = @queue) END

-- :: function_promote_scheduled
CREATE OR REPLACE FUNCTION holdfast.promote_scheduled(most integer, places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE number integer;
BEGIN
    WITH first AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at ORDER BY due_at, seq LIMIT most
    ), picked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT s.seq FROM first f JOIN holdfast.jobs s ON s.seq = f.seq
        WHERE CASE s.state WHEN 'scheduled' THEN s.due_at <= at END
          AND (s.grp IS NULL OR ROW(s.queue, s.grp)::holdfast.place = ANY (places))
        ORDER BY s.due_at, s.seq FOR UPDATE OF s SKIP LOCKED
    ), numbered AS MATERIALIZED (SELECT seq, nextval('holdfast.ticks') AS tick FROM picked)
    UPDATE holdfast.jobs d
    SET state = CASE WHEN d.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        lane = @lane_in_bulk(d.task, d.grp), rank = @rank(d.priority, @aging_in_bulk(d.queue)),
        turn = CASE WHEN d.grp IS NULL THEN @turn(n.tick, d.priority, @aging_in_bulk(d.queue)) END
    FROM numbered n WHERE d.seq = n.seq;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END $$

-- :: function_promote
CREATE OR REPLACE FUNCTION holdfast.promote(most integer, given double precision) RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    places holdfast.place[];
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.promote'), 0);
    at := holdfast.store_now(given);  -- waiting for the lock may have taken a while
    PERFORM holdfast.lock_letters_due(most, at);
    places := holdfast.places_due(most, at);
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    RETURN holdfast.promote_due(most, places, at);
END $$
