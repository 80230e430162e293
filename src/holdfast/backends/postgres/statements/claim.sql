-- claim: lease ready jobs to a worker. Every limit was obeyed when a job became ready, so what is read may be taken.
-- Ready and running both count as in play: a claim changes no group's occupancy and needs no group's lock.
-- Safe against a rival: rows are locked with SKIP LOCKED in materialised CTEs (a bare LIMIT sub-query may run twice).

-- :: function_store_now
CREATE OR REPLACE FUNCTION holdfast.store_now(given double precision) RETURNS double precision LANGUAGE sql AS $$
    SELECT coalesce(given, extract(epoch FROM clock_timestamp())::double precision)
$$

-- :: function_share_rules
CREATE OR REPLACE FUNCTION holdfast.share_rules() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared(hashtext('holdfast.rules'), 0)
$$

-- :: function_own_rules
CREATE OR REPLACE FUNCTION holdfast.own_rules() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtext('holdfast.rules'), 0)
$$

-- :: function_keep_up
-- Fences and turns are numbers of one sequence that is never below the clock in microseconds, so they grow even if the
-- store was rolled back. It is moved 0.1 s ahead at a time, under a lock that a sub-transaction gives back at once
-- (setval is not undone by it), so nobody waits for a commit and the sequence cannot be set back by a late rival.
CREATE OR REPLACE FUNCTION holdfast.keep_up(at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE micros bigint := ceil(at * 1000000);
BEGIN
    IF (SELECT last_value FROM holdfast.ticks) >= micros THEN RETURN; END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('holdfast.ticks'), 0);
        PERFORM setval('holdfast.ticks', greatest((SELECT last_value FROM holdfast.ticks), micros + 100000));
        RAISE EXCEPTION USING ERRCODE = 'HF000';
    EXCEPTION WHEN SQLSTATE 'HF000' THEN NULL;
    END;
END $$

-- :: function_claim_lanes
-- Of the room, the second lane gets its half where it can use it; what one cannot use the other may.
CREATE OR REPLACE FUNCTION holdfast.claim_lanes(named text, room integer, first integer, claimer text, number bigint,
                                                nonce text, at double precision) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE leases text[];
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = first AND (expires_at IS NULL OR expires_at > at)
        ORDER BY priority DESC, turn, seq
        LIMIT room - (SELECT count(*) FROM (
            SELECT FROM holdfast.jobs
            WHERE state = 'ready' AND queue = named AND lane = 1 - first AND (expires_at IS NULL OR expires_at > at)
            ORDER BY priority DESC, turn, seq LIMIT room / 2) s)
        FOR UPDATE SKIP LOCKED
    ), behind AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = 1 - first AND (expires_at IS NULL OR expires_at > at)
        ORDER BY priority DESC, turn, seq LIMIT room - (SELECT count(*) FROM ahead)
        FOR UPDATE SKIP LOCKED
    ), numbered AS MATERIALIZED (
        SELECT b.seq, nextval('holdfast.ticks') AS fence
        FROM (SELECT seq FROM ahead UNION ALL SELECT seq FROM behind) b
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = 'running', fence = n.fence, token = to_hex(n.fence) || '.' || nonce, worker = claimer,
            claim_call = number, started_at = at, begun = false
        FROM numbered n WHERE j.seq = n.seq
        RETURNING j.fence, holdfast.lease(j) AS lease
    )
    SELECT array_agg(lease ORDER BY taken.fence) INTO leases FROM taken;
    RETURN leases;
END $$

-- :: function_lease
-- The fields of the record Lease, in its order, all as text: a third of what building a JSON object would cost.
CREATE OR REPLACE FUNCTION holdfast.lease(j holdfast.jobs) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY[j.id, j.token, j.fence::text, j.task, j.queue, encode(j.args, 'base64'), j.priority::text, j.grp, j.key,
        (j.attempts + 1)::text, j.failures::text, j.stalls::text, j.max_stalls::text, j.created_at::text,
        j.started_at::text, encode(j.options, 'base64'), j.suspect::text, j.shared_stalls::text]
$$

-- :: function_base64
CREATE OR REPLACE FUNCTION holdfast.base64(content bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT translate(encode(content, 'base64'), E'\n', '')
$$

-- :: function_claim
CREATE OR REPLACE FUNCTION holdfast.claim(request jsonb, nonce text, at double precision)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    leases text[] := '{}';
    most integer := (request ->> 'most')::integer;
    number bigint := (request ->> 'call')::bigint;
    named text;
    room integer;
BEGIN
    FOR named IN SELECT q.name FROM jsonb_array_elements_text(request -> 'queues') WITH ORDINALITY q(name, n)
                 WHERE NOT EXISTS (SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'queue' AND p.queue = q.name)
                 ORDER BY q.n LOOP
        room := least(most - coalesce(array_length(leases, 1), 0), (request -> 'most_by_queue' ->> named)::integer);
        IF room > 0 THEN
            leases := leases || holdfast.claim_lanes(named, room, (number % 2)::integer, request ->> 'worker', number,
                                                     nonce, at);
        END IF;
    END LOOP;
    RETURN leases;
END $$
