-- settle: end leases with outcomes. Every way out of `running` but release and recover is in this file.
-- Compare-and-change on (id, token); no row means nothing changed. The caller locked the groups of all named jobs.
-- Safe against a rival: whoever ends the lease first voids the token in the same step.

-- :: function_settle_leases
CREATE OR REPLACE FUNCTION holdfast.settle_leases(wanted jsonb, elsewhere text[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    answers text[] := array_fill('lost'::text, ARRAY[jsonb_array_length(wanted)]);
    done bigint[];
    seqs bigint[];
    closes boolean;  -- there may be letters to close, or a number of finished jobs to keep to
    retains boolean;
    one record;
BEGIN
    -- Successes in one statement; of a lease named twice only the first.
    WITH asked AS MATERIALIZED (
        SELECT t.n, t.s ->> 'id' AS id, t.s ->> 'token' AS token, t.s ->> 'ending' AS ending, t.s ->> 'value' AS value,
               (t.s ->> 'retain')::double precision AS retain
        FROM jsonb_array_elements(wanted) WITH ORDINALITY t(s, n)
    ), ended AS (
        UPDATE holdfast.jobs j
        SET state = 'succeeded', attempts = j.attempts + 1, finished_at = at,
            prune_at = greatest(at + greatest(a.retain, 600), CASE WHEN j.key IS NOT NULL THEN j.created_at + j.key_window END),
            value = decode(a.value, 'base64'), token = NULL, worker = NULL, claim_call = NULL, held = false,
            suspect = false, holds_key = j.holds_key AND j.key_window IS NOT NULL
        FROM (SELECT DISTINCT ON (id) * FROM asked ORDER BY id, n) a
        WHERE a.ending = 'succeeded' AND j.id = a.id AND j.token = a.token AND j.state = 'running'
          AND NOT j.cancel_requested AND j.token <> ALL (elsewhere)
        RETURNING a.n, j.seq
    )
    SELECT array_agg(n), array_agg(seq) INTO done, seqs FROM ended;
    SELECT EXISTS (SELECT 1 FROM holdfast.letters), EXISTS (
        SELECT 1 FROM holdfast.tasks t WHERE t.retain_count IS NOT NULL) INTO closes, retains;
    IF seqs IS NOT NULL AND closes THEN
        PERFORM holdfast.close_letter(holdfast.logical_name(j), at) FROM holdfast.jobs j WHERE j.seq = ANY (seqs);
    END IF;
    IF seqs IS NOT NULL AND retains THEN PERFORM holdfast.retain(seqs); END IF;
    IF cardinality(done) = cardinality(answers) THEN RETURN array_fill('ok'::text, ARRAY[cardinality(done)]); END IF;
    FOR one IN SELECT unnest(done) AS n LOOP answers[one.n] := 'ok'; END LOOP;
    FOR one IN SELECT t.s, t.n FROM jsonb_array_elements(wanted) WITH ORDINALITY t(s, n)
               WHERE done IS NULL OR t.n <> ALL (done) ORDER BY t.n LOOP
        answers[one.n] := CASE WHEN one.s ->> 'token' = ANY (elsewhere) THEN 'busy'
                               ELSE holdfast.settle_lease(one.s, at) END;
    END LOOP;
    RETURN answers;
END $$

-- :: function_settle_lease
CREATE OR REPLACE FUNCTION holdfast.settle_lease(s jsonb, at double precision) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    failure jsonb := nullif(s -> 'failure', 'null');
    failed integer := (s ->> 'failed')::boolean::integer;
    ending text := s ->> 'ending';
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE id = s ->> 'id' AND token = s ->> 'token' AND state = 'running' FOR UPDATE;
    IF NOT FOUND THEN RETURN 'lost'; END IF;
    IF ending = 'stalled' THEN
        PERFORM holdfast.stall(j, coalesce(failure, '{"reason": "crash"}'), (s ->> 'alone')::boolean, true,
                               (s ->> 'retain')::double precision, at);
        RETURN 'ok';
    END IF;
    IF j.cancel_requested AND ending <> 'cancelled' THEN RETURN 'cancelled'; END IF;
    IF failure IS NOT NULL THEN
        failure := holdfast.stamped(j, failure, at);
        j.errors := holdfast.with_failure(j.errors, failure);
    END IF;
    IF ending = 'cancelled' THEN
        PERFORM holdfast.finish(j, 'cancelled', 1, 0, 0, 0, NULL, (s ->> 'retain')::double precision, at);
    ELSIF ending = 'buried' THEN
        PERFORM holdfast.finish(j, 'dead', 1, failed, 0, 0, coalesce(nullif(s ->> 'reason', ''), 'failed'), 0, at);
        PERFORM holdfast.bury_letter(j, coalesce(nullif(s ->> 'reason', ''), 'failed'), failure, at);
    ELSIF ending = 'succeeded' THEN  -- named a second time, and the first did not end it
        PERFORM holdfast.finish(j, 'succeeded', 1, 0, 0, 0, NULL, (s ->> 'retain')::double precision, at);
        UPDATE holdfast.jobs SET value = decode(s ->> 'value', 'base64') WHERE seq = j.seq;
    ELSE
        PERFORM holdfast.put_off(j, (s ->> 'delay')::double precision, 1, failed, at);
    END IF;
    RETURN 'ok';
END $$

-- :: function_put_off
CREATE OR REPLACE FUNCTION holdfast.put_off(j holdfast.jobs, delay double precision, attempt integer, failed integer,
                                            at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.jobs
    SET state = 'scheduled', attempts = attempts + attempt, failures = failures + failed,
        due_at = at + greatest(0, delay), held = grp IS NOT NULL AND holdfast.is_strict(queue, grp), errors = j.errors,
        expires_at = CASE WHEN attempt = 0 THEN expires_at END,
        turn = NULL, token = NULL, worker = NULL, claim_call = NULL, suspect = suspect AND attempt = 0
    WHERE seq = j.seq;
END $$

-- :: function_finish
CREATE OR REPLACE FUNCTION holdfast.finish(j holdfast.jobs, ending text, attempt integer, failed integer,
    stalled integer, shared integer, why text, retain double precision, at double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN  -- a dead job has no time to be pruned: it holds its letter
    UPDATE holdfast.jobs
    SET state = ending, attempts = attempts + attempt, failures = failures + failed, stalls = stalls + stalled,
        shared_stalls = shared_stalls + shared, suspect = stalled + shared > 0 OR (suspect AND attempt = 0),
        finished_at = at, reason = why, errors = j.errors, token = NULL, worker = NULL, claim_call = NULL, held = false,
        prune_at = CASE WHEN ending <> 'dead' THEN greatest(at + greatest(retain, 600), holdfast.window_ends(j)) END,
        holds_key = holds_key AND key_window IS NOT NULL
    WHERE seq = j.seq;
    IF ending <> 'dead' THEN PERFORM holdfast.close_letter(holdfast.logical_name(j), at), holdfast.retain(ARRAY[j.seq]); END IF;
END $$

-- :: function_is_strict
CREATE OR REPLACE FUNCTION holdfast.is_strict(queued text, grp text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT starts_with(grp, 'one-at-a-time:')  -- SERIAL_PREFIX
        OR coalesce((SELECT group_order = 'strict' FROM holdfast.queues WHERE name = queued), true)
$$
