-- settle: end leases with outcomes. Every way out of `running` but release and recover is in this file.
-- Compare-and-change on (id, token); no row means nothing changed. The caller locked the groups of all named jobs.
-- Safe against a rival: whoever ends the lease first voids the token in the same step.

-- :: function_settle_successes
-- The common case, in one statement. The leases come by column, as new jobs do in enqueue.sql, each named once; the job
-- is found by its token, which begins with its seq. What did not end this way settle_lease looks at, one by one.
CREATE OR REPLACE FUNCTION holdfast.settle_successes(wanted jsonb, elsewhere text[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    shared_retain double precision := (wanted ->> 'retain')::double precision;
    shared_value bytea := decode(wanted ->> 'value', 'base64');
    answers text[] := array_fill('ok'::text, ARRAY[jsonb_array_length(wanted -> 'token')]);
    done bigint[];
    seqs bigint[];
    closes boolean;  -- there may be letters to close, or a number of finished jobs to keep to
    retains boolean;
    n integer;
BEGIN
    WITH ended AS (
        UPDATE holdfast.jobs j
        SET state = 'succeeded', attempts = least(j.attempts, 2147483646) + 1, finished_at = at,
            prune_at = greatest(at + greatest(coalesce(a.retain::double precision, shared_retain), 600),
                                CASE WHEN j.key IS NOT NULL THEN j.created_at + j.key_window END),
            value = coalesce(decode(a.value, 'base64'), shared_value), token = NULL, worker = NULL, claim_call = NULL,
            held = false, suspect = false, holds_key = j.holds_key AND j.key_window IS NOT NULL
        FROM ROWS FROM (jsonb_array_elements_text(wanted -> 'token'), jsonb_array_elements_text(wanted -> 'id'),
                        jsonb_array_elements_text(wanted -> 'retains'), jsonb_array_elements_text(wanted -> 'values'))
             WITH ORDINALITY a(token, id, retain, value, n)
        WHERE j.seq = split_part(a.token, '.', 1)::bigint AND j.token = a.token AND j.id = a.id
          AND CASE j.state WHEN 'running' THEN NOT j.cancel_requested END  -- so that only the key can find the row
          AND j.token <> ALL (elsewhere)
        RETURNING a.n, j.seq
    )
    SELECT array_agg(ended.n), array_agg(ended.seq), EXISTS (SELECT FROM holdfast.letters),
           EXISTS (SELECT FROM holdfast.tasks t WHERE t.retain_count IS NOT NULL)
    INTO done, seqs, closes, retains FROM ended;
    IF seqs IS NOT NULL THEN
        IF closes THEN
            PERFORM holdfast.close_letter(holdfast.logical_name(j), at) FROM holdfast.jobs j WHERE j.seq = ANY (seqs);
        END IF;
        IF retains THEN PERFORM holdfast.retain(seqs); END IF;
        IF cardinality(done) = cardinality(answers) THEN RETURN answers; END IF;
    END IF;
    FOR n IN SELECT g FROM generate_series(1, cardinality(answers)) g WHERE done IS NULL OR g <> ALL (done) LOOP
        answers[n] := holdfast.settle_other(jsonb_build_object(
            'id', wanted -> 'id' -> (n - 1), 'token', wanted -> 'token' -> (n - 1), 'ending', 'succeeded',
            'value', coalesce(wanted -> 'values' -> (n - 1), wanted -> 'value'),
            'retain', coalesce(wanted -> 'retains' -> (n - 1), wanted -> 'retain')), elsewhere, at);
    END LOOP;
    RETURN answers;
END $$

-- :: function_settle_others
CREATE OR REPLACE FUNCTION holdfast.settle_others(wanted jsonb, elsewhere text[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    answers text[] := '{}';
    one jsonb;
BEGIN
    FOR one IN SELECT t.s FROM jsonb_array_elements(wanted) WITH ORDINALITY t(s, n) ORDER BY t.n LOOP
        answers := answers || holdfast.settle_other(one, elsewhere, at);
    END LOOP;
    RETURN answers;
END $$

-- :: function_settle_other
CREATE OR REPLACE FUNCTION holdfast.settle_other(s jsonb, elsewhere text[], at double precision)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF s ->> 'token' = ANY (elsewhere) THEN RETURN 'busy'; END IF;
    RETURN holdfast.settle_lease(s, at);
END $$

-- :: function_settle_lease
CREATE OR REPLACE FUNCTION holdfast.settle_lease(s jsonb, at double precision) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    failure jsonb := nullif(s -> 'failure', 'null');
    failed integer := (s ->> 'failed')::boolean::integer;
    ending text := s ->> 'ending';
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE seq = holdfast.seq_named(s ->> 'id', s ->> 'token')
    AND id = s ->> 'id' AND token = s ->> 'token' AND state = 'running' FOR UPDATE;
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
    ELSIF ending = 'succeeded' THEN  -- not the first word on this lease, or a token that is not ours to read
        PERFORM holdfast.finish(j, 'succeeded', 1, 0, 0, 0, NULL, (s ->> 'retain')::double precision, at);
        UPDATE holdfast.jobs SET value = decode(s ->> 'value', 'base64') WHERE seq = j.seq;
    ELSE
        PERFORM holdfast.put_off(j, (s ->> 'delay')::double precision, 1, failed, at);
    END IF;
    RETURN 'ok';
END $$
