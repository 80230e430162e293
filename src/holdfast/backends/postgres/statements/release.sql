-- release: a lease ends unfinished and the job is claimable again; no counter but a stall's is touched, and a stall makes
-- it a suspect. The turn stays, so it goes before what came later. The caller locked the groups and refills them.

-- :: call
SELECT holdfast.retire(%(worker)s, %(now)s)::text

-- :: function_release_leases
CREATE OR REPLACE FUNCTION holdfast.release_leases(wanted jsonb, elsewhere text[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    answers text[] := '{}';
    one jsonb;
    j holdfast.jobs;
BEGIN
    FOR one IN SELECT t.s FROM jsonb_array_elements(wanted) WITH ORDINALITY t(s, n) ORDER BY t.n LOOP
        IF one ->> 'token' = ANY (elsewhere) THEN
            answers := answers || 'busy'::text;
            CONTINUE;
        END IF;
        SELECT * INTO j FROM holdfast.jobs
        WHERE seq = holdfast.seq_named(one ->> 'id', one ->> 'token') AND id = one ->> 'id'
          AND token = one ->> 'token' AND state = 'running' FOR UPDATE;
        IF FOUND THEN
            PERFORM holdfast.give_back(j, (one ->> 'delay')::double precision, at);
            answers := answers || 'ok'::text;
        ELSE
            answers := answers || 'lost'::text;
        END IF;
    END LOOP;
    RETURN answers;
END $$

-- :: function_release_unseen
-- Leases that their worker does not know of are given back. Returns the tokens of those whose jobs a stranger holds:
-- they are left to a later call, this one must not fail.
CREATE OR REPLACE FUNCTION holdfast.release_unseen(unseen jsonb, at double precision) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    ending bigint[] := holdfast.seqs_named(NULL, unseen);
    places holdfast.place[] := holdfast.places_named(ending);
    elsewhere text[];
BEGIN
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    elsewhere := holdfast.held_elsewhere(ending);
    PERFORM holdfast.release_leases(unseen, elsewhere, at);
    PERFORM holdfast.refill_groups(places, at);
    RETURN elsewhere;
END $$

-- :: function_give_back
CREATE OR REPLACE FUNCTION holdfast.give_back(j holdfast.jobs, delay double precision, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- free of charge
    IF j.cancel_requested THEN
        PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, NULL, 86400, at);
    ELSIF delay > 0 THEN
        PERFORM holdfast.put_off(j, delay, 0, 0, at);
    ELSE
        PERFORM holdfast.put_back(j, 0, 0);
    END IF;
END $$

-- :: function_put_back
CREATE OR REPLACE FUNCTION holdfast.put_back(j holdfast.jobs, stalled integer, shared integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.jobs
    SET state = CASE WHEN grp IS NULL THEN 'ready' ELSE 'waiting' END,
        attempts = holdfast.counted(attempts, stalled + shared), stalls = holdfast.counted(stalls, stalled),
        shared_stalls = holdfast.counted(shared_stalls, shared),
        suspect = suspect OR stalled + shared > 0, errors = j.errors,
        expires_at = CASE WHEN stalled + shared = 0 THEN expires_at END,
        lane = holdfast.lane_of(task, grp), rank = holdfast.rank_of(queue, priority),
        held = grp IS NOT NULL AND holdfast.is_strict(queue, grp),
        token = NULL, worker = NULL, claim_call = NULL
    WHERE seq = j.seq;
END $$

-- :: function_lane_of
CREATE OR REPLACE FUNCTION holdfast.lane_of(named text, grp text) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT (CASE WHEN EXISTS (SELECT 1 FROM holdfast.pauses WHERE kind = 'task' AND queue = '' AND name = named) THEN 2
                 ELSE coalesce((SELECT lane FROM holdfast.bounds WHERE kind = 'task' AND name = named),
                               CASE WHEN grp IS NULL THEN 0 ELSE 1 END) END)::smallint
$$

-- :: function_rank_of
CREATE OR REPLACE FUNCTION holdfast.rank_of(queued text, priority integer) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN EXISTS (SELECT 1 FROM holdfast.bounds WHERE kind = 'queue' AND name = queued AND aging IS NOT NULL)
                THEN 0 ELSE priority END
$$

-- :: function_age_shift
-- By how many ticks a priority moves a turn forward; 0 where the queue does not age its jobs.
CREATE OR REPLACE FUNCTION holdfast.age_shift(queued text, priority integer) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT floor(priority * aging * 1000000)::bigint FROM holdfast.bounds
                     WHERE kind = 'queue' AND name = queued), 0)
$$

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
