-- recover: end the leases of workers that are past their deadline or known to be dead.
-- `stall` is THE ONE routine that decides stalls, whether a sweep, a claim or settle detected them.
-- Concurrency: a worker's row is locked with SKIP LOCKED: of two sweeps one takes it, and a worker that is receiving
-- leases at this moment is left to the next sweep.

-- :: call
SELECT holdfast.recover(%(dead)s::text[], %(limit)s, %(now)s)::text

-- :: function_stalled_workers
CREATE OR REPLACE FUNCTION holdfast.stalled_workers(dead text[], at double precision)
RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM holdfast.workers WHERE deadline <= at OR id = ANY (dead)) THEN RETURN '{}'; END IF;
    RETURN (WITH found AS MATERIALIZED (
        SELECT id FROM holdfast.workers WHERE deadline <= at OR id = ANY (dead) ORDER BY id FOR UPDATE SKIP LOCKED)
    SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM found);
END $$

-- :: function_places_stalled
CREATE OR REPLACE FUNCTION holdfast.places_stalled(stalled text[], most integer)
RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(stalled), 0) = 0 THEN RETURN '{}'; END IF;
    RETURN (SELECT array_agg(DISTINCT ROW(s.queue, s.grp)::holdfast.place) FROM (
        SELECT queue, grp FROM holdfast.jobs WHERE state = 'running' AND worker = ANY (stalled)
        ORDER BY worker, fence DESC LIMIT most) s WHERE s.grp IS NOT NULL);
END $$

-- :: function_recover_leases
CREATE OR REPLACE FUNCTION holdfast.recover_leases(stalled text[], most integer, places holdfast.place[],
                                                   at double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    holder text;
    isolated boolean;
    j holdfast.jobs;
    ended jsonb[] := '{}';
BEGIN
    FOREACH holder IN ARRAY stalled LOOP
        SELECT isolates INTO isolated FROM holdfast.workers WHERE id = holder;
        FOR j IN SELECT * FROM holdfast.jobs r WHERE r.state = 'running' AND r.worker = holder
                 AND (r.grp IS NULL OR ROW(r.queue, r.grp)::holdfast.place = ANY (places))
                 ORDER BY r.fence DESC LIMIT most - cardinality(ended) FOR UPDATE SKIP LOCKED LOOP  -- the last of a chain first
            ended := ended || holdfast.recover_lease(j, isolated, at);
        END LOOP;
        EXIT WHEN EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'running' AND worker = holder);
        DELETE FROM holdfast.workers WHERE id = holder;
        DELETE FROM holdfast.calls WHERE worker = holder;
    END LOOP;
    PERFORM holdfast.tell(at), holdfast.refill_groups(places, at);
    -- A grouped job was put back as waiting; the refill may have made it ready.
    RETURN (SELECT coalesce(jsonb_agg(e.r || jsonb_build_object('state', s.state) ORDER BY e.n), '[]')
            FROM unnest(ended) WITH ORDINALITY e(r, n) JOIN holdfast.jobs s ON s.seq = (e.r ->> 'seq')::bigint);
END $$

-- :: function_stall
-- Decides a stall by the rule of lifecycle.stall_verdict. Returns whether it counted.
CREATE OR REPLACE FUNCTION holdfast.stall(j holdfast.jobs, failure jsonb, alone boolean, started boolean,
    retain double precision, at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    own integer := alone::integer;
    shared integer := (NOT alone)::integer;
    why text := coalesce(failure ->> 'reason', 'failed');
BEGIN
    IF j.max_stalls = 0 AND NOT started THEN
        PERFORM holdfast.give_back(j, 0, at);
        RETURN false;
    END IF;
    failure := holdfast.stamped(j, failure, at);
    j.errors := holdfast.with_failure(j.errors, failure);
    IF j.cancel_requested THEN
        PERFORM holdfast.finish(j, 'cancelled', 1, 0, own, shared, NULL, retain, at);
    ELSIF j.max_stalls = 0 OR @counted(j.stalls, own) > j.max_stalls
          OR @counted(j.shared_stalls, shared) > @SHARED_STALLS_MAX THEN
        PERFORM holdfast.finish(j, 'dead', 1, 0, own, shared, why, 0, at), holdfast.bury_letter(j, why, failure, at);
    ELSE
        PERFORM holdfast.put_back(j, own, shared);
    END IF;
    RETURN true;
END $$

-- :: function_recover_lease
CREATE OR REPLACE FUNCTION holdfast.recover_lease(j holdfast.jobs, isolated boolean, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    alone boolean := j.suspect OR NOT isolated;
    failure jsonb := jsonb_build_object('reason', 'stalled', 'text', CASE
        WHEN alone THEN format('text:stalled', j.stalls + 1, j.max_stalls)
        ELSE format('text:stalled_among', j.shared_stalls + 1, @SHARED_STALLS_MAX) END);
    counted boolean := false;
BEGIN
    IF holdfast.is_behind(j) THEN
        PERFORM holdfast.give_back(j, 0, at);
    ELSE
        counted := holdfast.stall(j, failure, alone, j.begun, 86400, at);
    END IF;
    RETURN jsonb_build_object('id', j.id, 'task', j.task, 'queue', j.queue, 'group', j.grp, 'worker', j.worker,
        'stalls', @counted(j.stalls, (counted AND alone)::integer), 'counted', counted, 'seq', j.seq,
        'shared_stalls', @counted(j.shared_stalls, (counted AND NOT alone)::integer));
END $$

-- :: function_is_behind
-- Whether a lease is behind another one in its chain: then nobody knows that it began (R47).
CREATE OR REPLACE FUNCTION holdfast.is_behind(j holdfast.jobs) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN j.grp IS NOT NULL AND holdfast.is_strict(j.queue, j.grp) AND EXISTS (
        SELECT FROM holdfast.jobs p WHERE p.queue = j.queue AND p.grp = j.grp AND @in_play(p) AND p.state = 'running'
        AND p.worker = j.worker AND p.claim_call = j.claim_call AND p.fence < j.fence);
END $$

-- :: function_recover
CREATE OR REPLACE FUNCTION holdfast.recover(dead text[], most integer, given double precision)
RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    stalled text[];
    places holdfast.place[];
BEGIN
    PERFORM holdfast.share_rules();
    IF holdfast.quiet_seconds(at) > 0 THEN RETURN '[]'; END IF;
    stalled := holdfast.stalled_workers(dead, at);
    IF cardinality(stalled) = 0 THEN RETURN '[]'; END IF;
    places := holdfast.places_stalled(stalled, most);
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    RETURN holdfast.recover_leases(stalled, most, places, at);
END $$
