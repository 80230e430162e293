-- revive: a finished job is claimable again with fresh budgets; one step, harmless when repeated. Also retry and run_now.
-- The key is locked before the letter is looked at, the letter before the dead job.

-- :: call
SELECT holdfast.revive(%(id)s, %(now)s)::text

-- :: retry
SELECT holdfast.retry(%(id)s, %(now)s)::text

-- :: run_now
SELECT holdfast.run_now(%(id)s, %(now)s)::text

-- :: function_start_afresh
-- A caller's open transaction may be enqueuing the same key, unseen (see enqueue_on.sql). Nobody waits for it with groups
-- locked: the call gives up soon and is made anew.
CREATE OR REPLACE FUNCTION holdfast.start_afresh(j holdfast.jobs, at double precision) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '20ms' AS $$
BEGIN
    PERFORM holdfast.keep_up(at);
    IF j.key IS NOT NULL AND NOT j.holds_key THEN PERFORM holdfast.take_key(j, at); END IF;
    PERFORM holdfast.reset_jobs(ARRAY[j.seq], at);
EXCEPTION WHEN unique_violation THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
END $$

-- :: function_reset_jobs
CREATE OR REPLACE FUNCTION holdfast.reset_jobs(seqs bigint[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- the caller locked their rows and saw to their keys
    UPDATE holdfast.jobs
    SET state = CASE WHEN grp IS NULL THEN 'ready' ELSE 'waiting' END, lane = holdfast.lane_of(task, grp),
        rank = holdfast.rank_of(queue, priority),
        turn = CASE WHEN grp IS NULL THEN nextval('holdfast.ticks') - holdfast.age_shift(queue, priority) END,
        attempts = 0, failures = 0, stalls = 0, shared_stalls = 0, suspect = false, due_at = at, expires_at = NULL,
        finished_at = NULL, prune_at = NULL, reason = NULL, value = NULL, cancel_requested = false, begun = false,
        held = false, progress = NULL, progress_text = NULL, holds_key = key IS NOT NULL
    WHERE seq = ANY (seqs);
    DELETE FROM holdfast.retained WHERE seq = ANY (seqs);
END $$

-- :: function_twin
CREATE OR REPLACE FUNCTION holdfast.twin(j holdfast.jobs, at double precision) RETURNS text LANGUAGE sql AS $$
    SELECT h.id FROM holdfast.key_holder(j.queue, j.task, j.key, j.key_global, at) h WHERE h.seq <> j.seq
$$

-- :: function_refuse_if_key_is_held
CREATE OR REPLACE FUNCTION holdfast.refuse_if_key_is_held(j holdfast.jobs, verb text, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE twin text := holdfast.twin(j, at);
BEGIN
    IF twin IS NOT NULL THEN
        PERFORM holdfast.refuse_state(j, verb, jsonb_build_object('live_id', twin));
    END IF;
END $$

-- :: function_revive
CREATE OR REPLACE FUNCTION holdfast.revive(named text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
    letter holdfast.letters;
    heir text;
BEGIN
    PERFORM holdfast.refuse_sealed();
    SELECT * INTO letter FROM holdfast.letters WHERE job_id = named FOR UPDATE;
    IF j.state <> 'dead' THEN
        IF letter.job_id IS NOT NULL AND j.state NOT IN ('succeeded', 'cancelled') THEN  -- the second click
            RETURN holdfast.job_changed(j, at);
        END IF;
        PERFORM holdfast.refuse_state(j, 'revive');
    END IF;
    PERFORM holdfast.refuse_if_key_is_held(j, 'revive', at);
    SELECT job_id INTO heir FROM holdfast.letters WHERE logical = holdfast.logical_name(j);
    IF letter.job_id IS NULL AND heir IS NOT NULL THEN
        PERFORM holdfast.refuse_state(j, 'revive', jsonb_build_object('heir_id', heir));
    END IF;
    PERFORM holdfast.start_afresh(j, at);
    UPDATE holdfast.letters SET revived_at = at, revive_at = NULL WHERE job_id = named;
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_revive_due
-- Letters due for it, the first ones: how many were looked at, how many jobs live again. Those without a key all at once:
-- a sub-transaction each, which a key needs, took most of the time.
CREATE OR REPLACE FUNCTION holdfast.revive_due(most integer, places holdfast.place[], at double precision,
                                               OUT letters integer, OUT revived integer) LANGUAGE plpgsql AS $$
DECLARE
    plain text[];
    keyed text[];
    seqs bigint[];
    letter text;
BEGIN
    IF most > 0 THEN
        WITH first AS MATERIALIZED (
            SELECT l.logical FROM holdfast.letters l WHERE l.revive_at <= at AND l.revive_at IS NOT NULL
            ORDER BY l.revive_at LIMIT most
        ), locked AS MATERIALIZED (
            SELECT l.job_id, l.key FROM first f JOIN holdfast.letters l ON l.logical = f.logical
            WHERE l.revive_at <= at AND (l.grp IS NULL OR ROW(l.queue, l.grp)::holdfast.place = ANY (places))
            ORDER BY l.revive_at FOR UPDATE OF l SKIP LOCKED)
        SELECT array_agg(job_id) FILTER (WHERE key IS NULL), array_agg(job_id) FILTER (WHERE key IS NOT NULL)
        INTO plain, keyed FROM locked;
    END IF;
    letters := coalesce(cardinality(plain), 0) + coalesce(cardinality(keyed), 0);
    revived := 0;
    IF plain IS NOT NULL THEN
        seqs := ARRAY(SELECT j.seq FROM unnest(plain) p(id) JOIN holdfast.ids i ON i.id = p.id
                      JOIN holdfast.jobs j ON j.seq = i.seq WHERE CASE j.state WHEN 'dead' THEN j.key IS NULL END
                      ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED);
        PERFORM holdfast.keep_up(at), holdfast.reset_jobs(seqs, at);
        revived := cardinality(seqs);
        UPDATE holdfast.letters l  -- of a job that a stranger holds: look again later
        SET revived_at = CASE WHEN j.seq = ANY (seqs) THEN at ELSE l.revived_at END,
            cycles = l.cycles + (j.seq IS NOT NULL AND j.seq = ANY (seqs))::integer,
            revive_at = CASE WHEN j.state = 'dead' THEN at + 5 END
        FROM unnest(plain) p(id) LEFT JOIN holdfast.ids i ON i.id = p.id LEFT JOIN holdfast.jobs j ON j.seq = i.seq
        WHERE l.job_id = p.id;
    END IF;
    FOREACH letter IN ARRAY coalesce(keyed, '{}') LOOP
        revived := revived + holdfast.revive_letter(letter, at)::integer;
    END LOOP;
END $$

-- :: function_revive_letter
CREATE OR REPLACE FUNCTION holdfast.revive_letter(named text, at double precision) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '20ms' AS $$
DECLARE j holdfast.jobs;
BEGIN  -- automatic; the caller locked key, group and letter
    SELECT * INTO j FROM holdfast.jobs
    WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) AND state = 'dead' FOR UPDATE;
    IF NOT FOUND OR holdfast.twin(j, at) IS NOT NULL THEN
        UPDATE holdfast.letters SET revive_at = NULL WHERE job_id = named;
        RETURN false;
    END IF;
    PERFORM holdfast.start_afresh(j, at);
    UPDATE holdfast.letters SET revived_at = at, revive_at = NULL, cycles = cycles + 1 WHERE job_id = named;
    RETURN true;
EXCEPTION WHEN lock_not_available OR serialization_failure THEN  -- its key is on its way elsewhere: look again later
    UPDATE holdfast.letters SET revive_at = at + 5 WHERE job_id = named;
    RETURN false;
END $$

-- :: function_retry
CREATE OR REPLACE FUNCTION holdfast.retry(named text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state = 'dead' THEN RETURN holdfast.revive(named, at); END IF;
    IF j.state NOT IN ('succeeded', 'cancelled') THEN
        PERFORM holdfast.refuse_state(j, 'retry');
    END IF;
    PERFORM holdfast.refuse_if_key_is_held(j, 'retry', at), holdfast.start_afresh(j, at);
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_run_now
CREATE OR REPLACE FUNCTION holdfast.run_now(named text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state <> 'scheduled' THEN
        PERFORM holdfast.refuse_state(j, 'run_now');
    END IF;
    PERFORM holdfast.keep_up(at);
    UPDATE holdfast.jobs
    SET state = CASE WHEN grp IS NULL THEN 'ready' ELSE 'waiting' END, lane = holdfast.lane_of(task, grp), due_at = at,
        rank = holdfast.rank_of(queue, priority),
        turn = CASE WHEN grp IS NULL THEN nextval('holdfast.ticks') - holdfast.age_shift(queue, priority) END
    WHERE seq = j.seq;
    RETURN holdfast.job_changed(j, at);
END $$
