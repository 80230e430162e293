-- settle: everything a worker does with a lease: begin, report, settle, release.

-- == settle: end leases with outcomes. The other ways out of `running` are release (below) and recover (recover.sql).
-- Compare-and-change on (id, token); no row means nothing changed. The caller has locked the groups of all named jobs.
-- Concurrency: whoever ends the lease first clears its token in the same step.

-- :: fragment unleased
token = NULL, worker = NULL, claim_call = NULL

-- :: fragment ended(j, until, held)
-- What is written into every job j that ends for good, until when it is kept, and whether it stops its group.
finished_at = at, prune_at = @until, @unleased, held = @held,
holds_key = @j.holds_key AND @j.key_window IS NOT NULL

-- :: fragment prune_at(j, retain)
-- formulas.prune_at
greatest(at + greatest(@retain, @REMEMBER_SECONDS_MIN), @window_end(@j))

-- :: fragment counted(number, more)
-- A counter at its maximum stays there: an overflow would raise.
least(@number, 2147483647 - (@more)) + (@more)

-- :: function_settle_successes
-- The common case, in one statement. Leases arrive by column, as new jobs do in enqueue.sql, each named once; a job is
-- found by its token, which begins with its seq. Leases that did not end this way go to settle_lease, one by one.
CREATE OR REPLACE FUNCTION holdfast.settle_successes(wanted jsonb, elsewhere text[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    shared_retain double precision := (wanted ->> 'retain')::double precision;
    shared_value bytea := decode(wanted ->> 'value', 'base64');
    answers text[] := array_fill('ok'::text, ARRAY[jsonb_array_length(wanted -> 'token')]);
    done bigint[];
    seqs bigint[];
    closes boolean;  -- there may be dead letters to close
    retains boolean;  -- some task keeps only its newest N finished jobs
    n integer;
BEGIN
    WITH ended AS (
        UPDATE holdfast.jobs j
        SET state = 'succeeded', attempts = @counted(j.attempts, 1), suspect = false,
            value = coalesce(decode(a.value, 'base64'), shared_value),
            @ended(j, @prune_at(j, coalesce(a.retain::double precision, shared_retain)), false)
        FROM ROWS FROM (jsonb_array_elements_text(wanted -> 'token'), jsonb_array_elements_text(wanted -> 'id'),
                        jsonb_array_elements_text(wanted -> 'retains'), jsonb_array_elements_text(wanted -> 'values'))
             WITH ORDINALITY a(token, id, retain, value, n)
        WHERE j.seq = split_part(a.token, '.', 1)::bigint AND j.token = a.token AND j.id = a.id
          AND CASE j.state WHEN 'running' THEN NOT j.cancel_requested END  -- CASE forces a primary key lookup
          AND j.token <> ALL (elsewhere)
        RETURNING a.n, j.seq
    )
    SELECT array_agg(ended.n), array_agg(ended.seq), EXISTS (SELECT FROM holdfast.letters),
           EXISTS (SELECT FROM holdfast.tasks t WHERE t.retain_count IS NOT NULL)
    INTO done, seqs, closes, retains FROM ended;
    IF seqs IS NOT NULL THEN
        IF EXISTS (SELECT FROM holdfast.edges) THEN PERFORM holdfast.tell_of_successes(seqs, at); END IF;
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
    PERFORM holdfast.tell(at);
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
    ELSIF ending = 'succeeded' THEN  -- to be removed, a repeat, or with a token the client could not parse
        PERFORM holdfast.finish(j, 'succeeded', 1, 0, 0, 0, NULL, (s ->> 'retain')::double precision, at);
        UPDATE holdfast.jobs SET value = decode(s ->> 'value', 'base64') WHERE seq = j.seq;
        IF (s ->> 'retain')::double precision < 0 THEN PERFORM holdfast.remove_ended(j); END IF;
    ELSE
        IF ending = 'snoozed' THEN j.marks := holdfast.with_mark(j.marks, 'snooze', @lease_facts, at); END IF;
        PERFORM holdfast.put_off(j, CASE WHEN ending = 'snoozed' AND s ->> 'reason' <> ''
            AND holdfast.is_signalled(j.id, s ->> 'reason') THEN 0 ELSE (s ->> 'delay')::double precision END, 1, failed, at);
    END IF;
    RETURN 'ok';
END $$

-- :: function_remove_ended
-- Removes a job that has just succeeded, unless others refer to it or its key has a window (R108).
CREATE OR REPLACE FUNCTION holdfast.remove_ended(j holdfast.jobs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.holds_key AND j.key_window IS NOT NULL OR EXISTS (SELECT FROM holdfast.edges e WHERE e.parent = j.id)
       OR EXISTS (SELECT FROM holdfast.edges e WHERE e.child = j.id) THEN RETURN; END IF;
    PERFORM holdfast.remove(ARRAY[j.seq]);
END $$

-- :: remove
SELECT holdfast.remove_settled(%(ids)s)

-- :: function_remove_settled
-- Removes jobs that a caller's transaction has ended (R90). Concurrency: one that another session has locked is kept.
CREATE OR REPLACE FUNCTION holdfast.remove_settled(named text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules(), holdfast.refuse_sealed();
    FOR j IN SELECT * FROM holdfast.jobs e WHERE e.state = 'succeeded' AND e.seq = ANY (ARRAY(
        SELECT i.seq FROM holdfast.ids i WHERE i.id = ANY (named))) ORDER BY e.seq FOR UPDATE SKIP LOCKED LOOP
        PERFORM holdfast.remove_ended(j);
    END LOOP;
END $$

-- == finish: what is written when an attempt ends and the job finishes or is due again later.
-- Concurrency: the caller has locked the job's row and its group.

-- :: function_put_off
CREATE OR REPLACE FUNCTION holdfast.put_off(j holdfast.jobs, delay double precision, attempt integer, failed integer,
                                            at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.jobs
    SET state = 'scheduled', attempts = @counted(attempts, attempt), failures = @counted(failures, failed),
        due_at = at + greatest(0, delay), held = grp IS NOT NULL AND holdfast.is_strict(queue, grp), errors = j.errors,
        marks = j.marks, expires_at = CASE WHEN attempt = 0 THEN expires_at END,
        turn = NULL, @unleased, suspect = suspect AND attempt = 0
    WHERE seq = j.seq;
END $$

-- :: function_finish
CREATE OR REPLACE FUNCTION holdfast.finish(j holdfast.jobs, ending text, attempt integer, failed integer,
    stalled integer, shared integer, why text, retain double precision, at double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN  -- a dead job has no prune_at: its dead letter needs it; one that dies at the end of an attempt may stop its group
    UPDATE holdfast.jobs e
    SET state = ending, attempts = @counted(attempts, attempt), failures = @counted(failures, failed),
        stalls = @counted(stalls, stalled), shared_stalls = @counted(shared_stalls, shared),
        suspect = stalled + shared > 0 OR (suspect AND attempt = 0), reason = why, errors = j.errors, marks = j.marks,
        @ended(e, CASE WHEN ending <> 'dead' THEN @prune_at(e, retain) END,
               CASE WHEN ending = 'dead' AND attempt > 0 THEN holdfast.stops(queue, grp) ELSE false END)
    WHERE seq = j.seq;
    PERFORM holdfast.note_ended(ARRAY[j.seq]);
    IF ending <> 'dead' THEN PERFORM holdfast.close_letter(holdfast.logical_name(j), at), holdfast.retain(ARRAY[j.seq]); END IF;
END $$

-- == begin: mark leases as begun before their handlers start.
-- Fenced by (id, token); refused if cancellation was requested.

-- :: call
WITH asked AS MATERIALIZED (
    SELECT i.seq, h.value ->> 'token' AS token, h.ordinality AS n
    FROM jsonb_array_elements(%(held)s::jsonb) WITH ORDINALITY h LEFT JOIN holdfast.ids i ON i.id = h.value ->> 'id'
), marked AS (
    UPDATE holdfast.jobs j SET begun = true FROM (SELECT DISTINCT seq, token FROM asked) a
    WHERE j.seq = a.seq AND j.token = a.token AND j.state = 'running' AND NOT j.cancel_requested
    RETURNING j.seq, j.token
)
SELECT coalesce(json_agg(CASE WHEN m.seq IS NOT NULL THEN 'ok' WHEN j.cancel_requested THEN 'cancelled' ELSE 'lost' END
                         ORDER BY a.n), '[]')::text
FROM asked a LEFT JOIN marked m ON m.seq = a.seq AND m.token = a.token
LEFT JOIN holdfast.jobs j ON j.seq = a.seq AND j.token = a.token AND j.state = 'running'

-- == report: store progress and log lines of running jobs, fenced by (id, token); keeps the newest 200 lines of a job.

-- :: call
SELECT holdfast.report(%(reports)s::jsonb, %(now)s)::text

-- :: function_report
CREATE OR REPLACE FUNCTION holdfast.report(reports jsonb, given double precision)
RETURNS jsonb LANGUAGE plpgsql SET enable_seqscan = off SET lock_timeout = '100ms' AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    answers jsonb := '[]';
    one jsonb;
    found_seq bigint;
    newest bigint;
BEGIN
    FOR one IN SELECT r.value FROM jsonb_array_elements(reports) WITH ORDINALITY r ORDER BY r.ordinality LOOP
        UPDATE holdfast.jobs SET progress = coalesce((one ->> 'progress')::double precision, progress),
                                 progress_text = coalesce(one ->> 'text', progress_text),
            marks = CASE WHEN coalesce(one ->> 'progress', one ->> 'text') IS NULL THEN marks ELSE holdfast.with_note(
                marks, 'progress', jsonb_build_object('worker', worker, 'fence', fence, 'progress', one -> 'progress',
                                                      'text', one -> 'text'), at) END
        WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = one ->> 'id')
          AND token = one ->> 'token' AND state = 'running' RETURNING seq INTO found_seq;
        answers := answers || to_jsonb(CASE WHEN found_seq IS NULL THEN 'lost' ELSE 'ok' END);
        CONTINUE WHEN found_seq IS NULL OR jsonb_array_length(one -> 'lines') = 0;
        SELECT coalesce(max(line), 0) INTO newest FROM holdfast.logs WHERE job_seq = found_seq;
        INSERT INTO holdfast.logs (job_seq, line, at, text)
        SELECT found_seq, newest + l.n, at, l.line
        FROM jsonb_array_elements_text(one -> 'lines') WITH ORDINALITY l(line, n);
        DELETE FROM holdfast.logs WHERE job_seq = found_seq
        AND line <= newest + jsonb_array_length(one -> 'lines') - @LOGS_KEPT_MAX;
    END LOOP;
    RETURN answers;
END $$

-- == release: end a lease unfinished and make the job claimable again. No counter changes, except for a stall, which
-- also marks the job as suspect. The job keeps its turn, so it goes before later ones. The caller has locked the groups
-- and refills them. It has no call of its own: release is part of exchange.

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
    PERFORM holdfast.tell(at);
    RETURN answers;
END $$

-- :: function_release_unseen
-- Release leases that their worker does not know of. Returns the tokens of those whose jobs another session has locked:
-- they are left to a later call, because this one must not fail.
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
BEGIN  -- does not count as an attempt
    j.marks := holdfast.with_mark(j.marks, 'release', @lease_facts, at);
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
        attempts = @counted(attempts, stalled + shared), stalls = @counted(stalls, stalled),
        shared_stalls = @counted(shared_stalls, shared),
        suspect = suspect OR stalled + shared > 0, errors = j.errors, marks = j.marks,
        expires_at = CASE WHEN stalled + shared = 0 THEN expires_at END,
        lane = holdfast.lane_of(task, grp), rank = holdfast.rank_of(queue, priority),
        held = grp IS NOT NULL AND holdfast.is_strict(queue, grp), @unleased
    WHERE seq = j.seq;
END $$

-- == settle_with: end a lease as succeeded and store the jobs that its handler enqueued, in one step.
-- Takes the settlement as exchange does and the jobs as enqueue_linked does. Returns the answer, and the queues in which
-- others may find work. Concurrency: keys, then all groups that any part may touch, are locked first, each kind in
-- order; an answer other than ok stores nothing.

-- :: call
SELECT holdfast.settle_with(%(successes)s::jsonb, %(settlements)s::jsonb, %(jobs)s::jsonb, %(links)s::jsonb,
                            %(now)s)::text

-- :: function_is_settling
-- Whether this transaction is inside settle_with.
CREATE OR REPLACE FUNCTION holdfast.is_settling() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('hf.settling', true), '') = 'on'
$$

-- :: function_settle_with
CREATE OR REPLACE FUNCTION holdfast.settle_with(successes jsonb, settlements jsonb, wanted jsonb, links jsonb,
                                                given double precision) RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    ending bigint[] := holdfast.seqs_named(successes, settlements);
    news holdfast.new_job[];
    places holdfast.place[];
    answer text;
BEGIN
    PERFORM holdfast.share_rules();
    news := ARRAY(SELECT j FROM holdfast.new_jobs(wanted, at) j ORDER BY j.n);
    IF holdfast.has_any(wanted, 'key') THEN
        PERFORM holdfast.lock_keys(array_agg(holdfast.key_name(j.queue, j.task, j.key, j.key_global)))
        FROM unnest(news) j WHERE j.key IS NOT NULL;
    END IF;
    places := holdfast.places_new(news) || holdfast.places_named(ending)
              || holdfast.places_released(ending, NULL, @PROPAGATE_MAX);
    IF places IS NOT NULL THEN PERFORM holdfast.lock_groups(places); END IF;
    PERFORM set_config('hf.settling', 'on', true);
    SELECT e.answer -> 'answers' ->> 0 INTO answer
    FROM holdfast.exchange(successes, settlements, '[]', NULL, '', false, given) e;
    IF answer = 'ok' THEN PERFORM holdfast.enqueue_linked(wanted, links, given); END IF;
    PERFORM set_config('hf.settling', '', true);
    PERFORM holdfast.tell(at);
    RETURN jsonb_build_object('answer', answer, 'stirred', holdfast.released_by(ending));
END $$
