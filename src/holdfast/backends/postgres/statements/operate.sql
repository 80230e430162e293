-- operate: the verbs of operators on single jobs and dead letters.

-- == cancel: end an unstarted job; a running one is only marked, and its slot is freed when its handler has stopped.
-- Also here: how an operator's verb locks its job, and how refusals are raised.

-- :: call
SELECT holdfast.cancel(%(id)s, %(by)s, %(reason)s, %(now)s)::text

-- :: function_refuse
CREATE OR REPLACE FUNCTION holdfast.refuse(code text, facts jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'refused', DETAIL = facts::text;
END $$

-- :: function_refuse_state
-- `facts`: besides the state, the live job that holds its key (live_id), or the job that has its dead letter (heir_id).
CREATE OR REPLACE FUNCTION holdfast.refuse_state(j holdfast.jobs, verb text, facts jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql AS $$
    SELECT holdfast.refuse('HF002', facts || jsonb_build_object('job_id', j.id, 'verb', verb, 'state', j.state))
$$

-- :: function_job_to_change
CREATE OR REPLACE FUNCTION holdfast.job_to_change(named text) RETURNS holdfast.jobs LANGUAGE plpgsql AS $$
DECLARE
    seen holdfast.jobs;
    j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules();
    SELECT * INTO seen FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named);
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'job')); END IF;
    IF seen.key IS NOT NULL THEN PERFORM holdfast.lock_keys(holdfast.key_names(seen)); END IF;
    IF seen.grp IS NOT NULL THEN
        PERFORM holdfast.lock_groups(ARRAY[ROW(seen.queue, seen.grp)::holdfast.place]);
    END IF;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'job')); END IF;
    IF j.grp IS DISTINCT FROM seen.grp THEN  -- replaced meanwhile: the client retries
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN j;
END $$

-- :: function_job_changed
CREATE OR REPLACE FUNCTION holdfast.job_changed(j holdfast.jobs, at double precision)
RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.keep_up(at), holdfast.tell(at);
    IF j.grp IS NOT NULL THEN
        PERFORM holdfast.refill_groups(ARRAY[ROW(j.queue, j.grp)::holdfast.place], at);
    END IF;
    RETURN (SELECT holdfast.job_record(r) FROM holdfast.jobs r WHERE r.seq = j.seq);
END $$

-- :: function_cancel
CREATE OR REPLACE FUNCTION holdfast.cancel(named text, who text, why text, given double precision)
RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    IF j.state IN ('succeeded', 'dead') THEN
        PERFORM holdfast.refuse_state(j, 'cancel');
    ELSIF j.state = 'running' THEN
        UPDATE holdfast.jobs SET cancel_requested = true,
            marks = holdfast.with_mark(j.marks, 'cancel', jsonb_build_object('by', who, 'text', why), at)
        WHERE seq = j.seq AND NOT cancel_requested;
    ELSIF j.state <> 'cancelled' THEN
        PERFORM holdfast.refuse_sealed();
        j.marks := holdfast.with_mark(j.marks, 'cancel', jsonb_build_object('by', who, 'text', why), at);
        PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, NULL, 86400, at), holdfast.count_ended(j, 'cancelled', at);
    END IF;
    RETURN holdfast.job_changed(j, at);
END $$

-- == bury: end a job as dead, with its letter (letters.sql); for operators, and for jobs that end unstarted.

-- :: call
SELECT holdfast.bury(%(id)s, %(reason)s, %(by)s, %(now)s)::text

-- :: function_kill
CREATE OR REPLACE FUNCTION holdfast.kill(j holdfast.jobs, why text, said text, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE failure jsonb := jsonb_build_object('at', at, 'reason', why, 'text', said, 'attempt', j.attempts,
                                            'fence', j.fence);
BEGIN  -- for an unstarted job
    j.errors := holdfast.with_failure(j.errors, failure);
    PERFORM holdfast.finish(j, 'dead', 0, 0, 0, 0, why, 0, at), holdfast.bury_letter(j, why, failure, at);
END $$

-- :: function_bury
CREATE OR REPLACE FUNCTION holdfast.bury(named text, said text, who text, given double precision)
RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state NOT IN ('scheduled', 'waiting', 'ready') THEN
        PERFORM holdfast.refuse_state(j, 'bury');
    END IF;
    j.marks := @with_mark('bury');
    PERFORM holdfast.kill(j, 'bury', coalesce(nullif(said, ''), 'text:buried'), at), holdfast.count_ended(j, 'dead', at);
    RETURN holdfast.job_changed(j, at);
END $$

-- == revive: make a finished job claimable again with fresh budgets; one step, idempotent. Also retry and run_now.
-- Concurrency: a job's key, group and row are locked before its dead letter. Only revive_due locks the dead letter before
-- the job, and does not wait for either.

-- :: call
SELECT holdfast.revive(%(id)s, %(by)s, %(now)s)::text

-- :: retry
SELECT holdfast.retry(%(id)s, %(by)s, %(now)s)::text

-- :: rejoin
SELECT holdfast.rejoin(%(id)s, %(by)s, %(now)s)::text

-- :: run_now
SELECT holdfast.run_now(%(id)s, %(by)s, %(now)s)::text

-- :: fragment due_now
-- Brings a job into play: it is ready, or waits for the refill of its group.
state = CASE WHEN grp IS NULL THEN 'ready' ELSE 'waiting' END, lane = holdfast.lane_of(task, grp),
rank = holdfast.rank_of(queue, priority), due_at = at,
turn = CASE WHEN grp IS NULL THEN holdfast.turn_of(nextval('holdfast.ticks'), queue, priority) END

-- :: fragment fresh
-- The columns that a revived job resets.
attempts = 0, failures = 0, stalls = 0, shared_stalls = 0, suspect = false, expires_at = NULL, finished_at = NULL,
prune_at = NULL, reason = NULL, value = NULL, cancel_requested = false, begun = false, progress = NULL,
progress_text = NULL, holds_key = key IS NOT NULL

-- :: function_start_afresh
-- A caller's open transaction may be enqueueing the same key, invisible to us (caller_transaction.sql). Do not wait for
-- it with groups locked: give up soon and let the client call again.
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
BEGIN  -- the caller has locked the rows and checked the keys
    UPDATE holdfast.jobs
    SET @due_now, @fresh
    WHERE seq = ANY (seqs);
    DELETE FROM holdfast.retained WHERE seq = ANY (seqs);
    PERFORM holdfast.note_ended(seqs);
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
CREATE OR REPLACE FUNCTION holdfast.revive(named text, who text, given double precision) RETURNS json LANGUAGE plpgsql
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
        IF letter.job_id IS NOT NULL AND j.state NOT IN ('succeeded', 'cancelled') THEN  -- revived before: idempotent
            RETURN holdfast.job_changed(j, at);
        END IF;
        PERFORM holdfast.refuse_state(j, 'revive');
    END IF;
    PERFORM holdfast.refuse_if_key_is_held(j, 'revive', at);
    SELECT job_id INTO heir FROM holdfast.letters WHERE logical = holdfast.logical_name(j);
    IF letter.job_id IS NULL AND heir IS NOT NULL THEN
        PERFORM holdfast.refuse_state(j, 'revive', jsonb_build_object('heir_id', heir));
    END IF;
    PERFORM holdfast.start_afresh(j, at), holdfast.mark(j, 'revive', who, at);
    UPDATE holdfast.letters SET revived_at = at, revive_at = NULL WHERE job_id = named;
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_revive_due
-- Revive the first `most` due dead letters; returns how many were examined and how many jobs were revived. Those
-- without a key in one statement: the sub-transaction per job that a key needs took most of the time.
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
        PERFORM holdfast.keep_up(at), holdfast.reset_jobs(seqs, at), holdfast.mark_revived(seqs, at);
        revived := cardinality(seqs);
        UPDATE holdfast.letters l  -- if another session has locked the job, try again in 5 s
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
BEGIN  -- automatic revival; the caller has locked key, group and dead letter
    SELECT * INTO j FROM holdfast.jobs
    WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) AND state = 'dead' FOR UPDATE;
    IF NOT FOUND OR holdfast.twin(j, at) IS NOT NULL THEN
        UPDATE holdfast.letters SET revive_at = NULL WHERE job_id = named;
        RETURN false;
    END IF;
    PERFORM holdfast.start_afresh(j, at), holdfast.mark_revived(ARRAY[j.seq], at);
    UPDATE holdfast.letters SET revived_at = at, revive_at = NULL, cycles = cycles + 1 WHERE job_id = named;
    RETURN true;
EXCEPTION WHEN lock_not_available OR serialization_failure THEN  -- its key is being taken: try again in 5 s
    UPDATE holdfast.letters SET revive_at = at + 5 WHERE job_id = named;
    RETURN false;
END $$

-- :: function_retry
CREATE OR REPLACE FUNCTION holdfast.retry(named text, who text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state = 'dead' THEN RETURN holdfast.revive(named, who, at); END IF;
    IF j.state NOT IN ('succeeded', 'cancelled') THEN
        PERFORM holdfast.refuse_state(j, 'retry');
    END IF;
    PERFORM holdfast.refuse_if_key_is_held(j, 'retry', at), holdfast.start_afresh(j, at);
    IF j.state = 'succeeded' THEN PERFORM holdfast.forget_steps(ARRAY[j.seq]); END IF;
    PERFORM holdfast.mark(j, 'retry', who, at);
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_run_now
CREATE OR REPLACE FUNCTION holdfast.run_now(named text, who text, given double precision) RETURNS json LANGUAGE plpgsql
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
    SET marks = @with_mark('run_now'), @due_now WHERE seq = j.seq;
    RETURN holdfast.job_changed(j, at);
END $$

-- == discard: delete a dead letter; its job stays dead and may be pruned.

-- :: call
SELECT holdfast.discard(%(id)s, %(by)s, %(now)s)::text

-- :: function_discard
CREATE OR REPLACE FUNCTION holdfast.discard(named text, who text, given double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    letter holdfast.letters;
    j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named);
    IF j.held THEN PERFORM holdfast.lock_groups(ARRAY[ROW(j.queue, j.grp)::holdfast.place]); END IF;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    SELECT * INTO letter FROM holdfast.letters WHERE job_id = named FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'dead letter'));
    END IF;
    IF j.state <> 'dead' THEN
        PERFORM holdfast.refuse_state(j, 'discard');
    END IF;
    DELETE FROM holdfast.letters WHERE job_id = named;
    PERFORM holdfast.let_go(named, 'discarded', at), holdfast.mark(j, 'discard', who, at);
    RETURN holdfast.letter_record(letter);
END $$
