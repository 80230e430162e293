-- bury: the step that makes or merges the one dead letter of a logical job, in the transaction that ends the job.
-- Here too: how failures are stamped and kept, how letters are closed, and the operator's own burial.

-- :: call
SELECT holdfast.bury(%(id)s, %(reason)s, %(now)s)::text

-- :: function_logical_name
CREATE OR REPLACE FUNCTION holdfast.logical_name(j holdfast.jobs) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN j.key IS NULL THEN 'id:' || j.id ELSE 'key:' || jsonb_build_array(j.queue, j.task, j.key)::text END
$$

-- :: function_stamped
CREATE OR REPLACE FUNCTION holdfast.stamped(j holdfast.jobs, failure jsonb, at double precision)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT failure || jsonb_build_object('at', at, 'attempt', least(j.attempts, 2147483646) + 1, 'fence', j.fence, 'worker', j.worker,
                                         'started_at', j.started_at)
$$

-- :: function_with_failure
CREATE OR REPLACE FUNCTION holdfast.with_failure(errors jsonb, failure jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(e.value ORDER BY e.ordinality)
    FROM jsonb_array_elements(coalesce(errors, '[]') || jsonb_build_array(failure)) WITH ORDINALITY e
    WHERE e.ordinality > jsonb_array_length(coalesce(errors, '[]')) + 1 - 10
$$

-- :: function_bury_letter
CREATE OR REPLACE FUNCTION holdfast.bury_letter(j holdfast.jobs, why text, failure jsonb, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    letter holdfast.letters;
    past jsonb;
BEGIN
    LOOP  -- two jobs of one key may be live, and die at one instant
        SELECT * INTO letter FROM holdfast.letters WHERE logical = holdfast.logical_name(j) FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO holdfast.letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at,
                                      failed_at, reason, error, revive_at)
        VALUES (holdfast.logical_name(j), j.id, j.task, j.queue, j.key, j.grp, j.args, 1, at, at, why, failure,
                at + holdfast.cooldown(j.revival, 0)) ON CONFLICT (logical) DO NOTHING;
        IF FOUND THEN RETURN; END IF;
    END LOOP;
    IF letter.job_id <> j.id THEN PERFORM holdfast.let_go(letter.job_id, 'superseded', at); END IF;
    past := jsonb_build_object('job_id', letter.job_id, 'at', letter.failed_at, 'reason', letter.reason,
        'error', coalesce(letter.error ->> 'text', ''),
        'args', CASE WHEN letter.args <> j.args THEN holdfast.base64(letter.args) END);
    UPDATE holdfast.letters
    SET job_id = j.id, grp = j.grp, args = j.args, failure_count = failure_count + 1, failed_at = at, reason = why,
        error = failure, history = holdfast.with_failure(history, past),
        revive_at = at + holdfast.cooldown(j.revival, cycles), revived_at = NULL
    WHERE logical = letter.logical;
END $$

-- :: function_cooldown
CREATE OR REPLACE FUNCTION holdfast.cooldown(revival jsonb, done integer)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE most double precision := (revival ->> 'cap')::double precision;
BEGIN
    IF revival IS NULL OR done >= (revival ->> 'cycles')::integer THEN RETURN NULL; END IF;
    RETURN least(most, (revival ->> 'after')::double precision * power((revival ->> 'factor')::double precision, done));
EXCEPTION WHEN numeric_value_out_of_range THEN RETURN most;
END $$

-- :: function_close_letter
CREATE OR REPLACE FUNCTION holdfast.close_letter(named text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE holder text;
BEGIN
    DELETE FROM holdfast.letters WHERE logical = named RETURNING job_id INTO holder;
    IF FOUND THEN PERFORM holdfast.let_go(holder, 'superseded', at); END IF;
END $$

-- :: function_let_go
CREATE OR REPLACE FUNCTION holdfast.let_go(named text, why text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- a dead job without a letter may be pruned; a revived one goes on as it is
    UPDATE holdfast.jobs j SET reason = why, prune_at = greatest(at + 600, holdfast.window_ends(j))
    WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) AND state = 'dead';
END $$

-- :: function_kill
CREATE OR REPLACE FUNCTION holdfast.kill(j holdfast.jobs, why text, said text, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE failure jsonb := jsonb_build_object('at', at, 'reason', why, 'text', said, 'attempt', j.attempts,
                                            'fence', j.fence);
BEGIN  -- an unstarted job dies
    j.errors := holdfast.with_failure(j.errors, failure);
    PERFORM holdfast.finish(j, 'dead', 0, 0, 0, 0, why, 0, at), holdfast.bury_letter(j, why, failure, at);
END $$

-- :: function_bury
CREATE OR REPLACE FUNCTION holdfast.bury(named text, said text, given double precision)
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
    PERFORM holdfast.kill(j, 'bury', coalesce(nullif(said, ''), 'text:buried'), at);
    RETURN holdfast.job_changed(j, at);
END $$
