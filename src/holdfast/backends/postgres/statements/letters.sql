-- letters: dead letters, one for each logical job.

-- == letter: create or update the one dead letter of a logical job, in the transaction that ends the job; and close it.
-- With a dead_queue a copy of the job is stored in the same transaction.

-- :: function_logical_name
CREATE OR REPLACE FUNCTION holdfast.logical_name(j holdfast.jobs) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN j.key IS NULL THEN 'id:' || j.id ELSE 'key:' || jsonb_build_array(j.queue, j.task, j.key)::text END
$$

-- :: function_bury_letter
CREATE OR REPLACE FUNCTION holdfast.bury_letter(j holdfast.jobs, why text, failure jsonb, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    letter holdfast.letters;
    holder text;
    past jsonb;
BEGIN
    LOOP  -- two jobs with the same key may be live, and die at the same moment
        holder := holdfast.lock_holder(holdfast.logical_name(j));
        SELECT * INTO letter FROM holdfast.letters WHERE logical = holdfast.logical_name(j) FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO holdfast.letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at,
                                      failed_at, reason, error, revive_at)
        VALUES (holdfast.logical_name(j), j.id, j.task, j.queue, j.key, j.grp, j.args, 1, at, at, why, failure,
                at + holdfast.cooldown(j.revival, 0)) ON CONFLICT (logical) DO NOTHING;
        IF FOUND THEN
            PERFORM holdfast.send_copy(j, why, 1, at);
            RETURN;
        END IF;
    END LOOP;
    IF letter.job_id <> j.id THEN
        IF letter.job_id IS DISTINCT FROM holder THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END IF;
        PERFORM holdfast.let_go(holder, 'superseded', at);
    END IF;
    past := jsonb_build_object('job_id', letter.job_id, 'at', letter.failed_at, 'reason', letter.reason,
        'error', coalesce(letter.error ->> 'text', ''),
        'args', CASE WHEN letter.args <> j.args THEN holdfast.base64(letter.args) END);
    UPDATE holdfast.letters
    SET job_id = j.id, grp = j.grp, args = j.args, failure_count = failure_count + 1, failed_at = at, reason = why,
        error = failure, history = holdfast.with_failure(history, past),
        revive_at = at + holdfast.cooldown(j.revival, cycles), revived_at = NULL
    WHERE logical = letter.logical;
    PERFORM holdfast.send_copy(j, why, letter.failure_count + 1, at);
END $$

-- :: function_send_copy
-- Store a copy of a job that dies in the dead_queue of its queue, unless one died there before it (R120). Scheduled and
-- due, like a job of a caller's own transaction (R60), so no group is locked and no rule read: promote brings it into
-- play. hf.copied has the queues to wake, until the transaction ends.
CREATE OR REPLACE FUNCTION holdfast.send_copy(j holdfast.jobs, why text, count integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    target text := (SELECT q.dead_queue FROM holdfast.queues q WHERE q.name = j.queue);
    named text := format('%s.%s.%s', j.id, count, floor(at * 1000000)::bigint);
    number bigint;
BEGIN
    IF target IS NULL OR position(convert_to('{"version":1,"queue":' || to_json(target) || ',', 'UTF8') IN j.options) > 0 THEN
        RETURN;
    END IF;
    number := nextval('holdfast.jobs_seq_seq');
    INSERT INTO holdfast.ids (id, seq) VALUES (named, number) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN; END IF;
    INSERT INTO holdfast.jobs (seq, @new_row, ordinal)
    VALUES (number, named, j.task, target, 'scheduled', j.priority, j.grp, 0, 0, NULL, j.max_stalls, at, at, NULL,
            j.args, NULL, holdfast.with_death(j, why), j.ordinal);
    PERFORM set_config('hf.copied', concat_ws(',', nullif(current_setting('hf.copied', true), ''), target), true);
END $$

-- :: function_with_death
-- The options of a copy: dead_copies.with_death.
CREATE OR REPLACE FUNCTION holdfast.with_death(j holdfast.jobs, why text) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    list bytea := '"dead":[';
    death bytea := convert_to(format('{"version":1,"queue":%s,"id":%s,"reason":%s}', to_json(j.queue), to_json(j.id), to_json(why)),
                              'UTF8');
    place integer := position(list IN j.options);
BEGIN
    IF j.options IS NULL OR length(j.options) <= 2 OR substr(j.options, length(j.options)) <> '}' THEN
        RETURN '{'::bytea || list || death || ']}';
    ELSIF place > 0 THEN
        RETURN substr(j.options, 1, place + 7) || death || ',' || substr(j.options, place + 8);
    END IF;
    RETURN substr(j.options, 1, length(j.options) - 1) || ',' || list || death || ']}';
END $$

-- :: function_copied
-- The queues that got copies in this transaction.
CREATE OR REPLACE FUNCTION holdfast.copied() RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT string_to_array(nullif(current_setting('hf.copied', true), ''), ',')
$$

-- :: function_cooldown
CREATE OR REPLACE FUNCTION holdfast.cooldown(revival jsonb, done integer)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE most double precision := (revival ->> 'cap')::double precision;
BEGIN
    IF revival IS NULL OR done >= (revival ->> 'cycles')::integer THEN RETURN NULL; END IF;
    RETURN least(most, (revival ->> 'after')::double precision * power((revival ->> 'factor')::double precision, done));
EXCEPTION WHEN numeric_value_out_of_range THEN RETURN most;
END $$

-- :: function_lock_holder
-- Lock the job that has a dead letter, before the letter itself, and return its id. If another job has the letter when
-- it is locked, the client retries: that one's row must not be locked after the letter.
CREATE OR REPLACE FUNCTION holdfast.lock_holder(named text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE holder text;
BEGIN
    SELECT l.job_id INTO holder FROM holdfast.letters l WHERE l.logical = named;
    IF FOUND THEN
        PERFORM 1 FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = holder) FOR UPDATE;
    END IF;
    RETURN holder;
END $$

-- :: function_close_letter
CREATE OR REPLACE FUNCTION holdfast.close_letter(named text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    locked text := holdfast.lock_holder(named);
    holder text;
BEGIN
    IF locked IS NULL THEN RETURN; END IF;
    DELETE FROM holdfast.letters WHERE logical = named RETURNING job_id INTO holder;
    IF holder <> locked THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END IF;
    PERFORM holdfast.let_go(holder, 'superseded', at);
END $$

-- :: function_let_go
CREATE OR REPLACE FUNCTION holdfast.let_go(named text, why text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE seen holdfast.jobs;
BEGIN  -- a dead job without a dead letter may be pruned and stops no group; a revived one is left alone
    SELECT * INTO seen FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named);
    IF seen.state IS DISTINCT FROM 'dead' THEN RETURN; END IF;
    UPDATE holdfast.jobs j SET reason = why, prune_at = @prune_at(j, 0), held = false WHERE seq = seen.seq;
    IF seen.held THEN PERFORM holdfast.go_on(seen.queue, seen.grp, at); END IF;
END $$
