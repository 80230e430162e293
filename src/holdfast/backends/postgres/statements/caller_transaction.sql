-- caller_transaction: enqueue inside a caller's own transaction.

-- == enqueue_on: enqueue inside a caller's own transaction; the jobs are visible if and only if it commits.
-- Takes the jobs, the id of the expected store, and how many milliseconds to wait for a rival with the same id or key.
-- Returns true (all were created), one answer per job, or why it refused; the caller's transaction stays usable.
-- Concurrency: the unique indexes of ids and keys decide. No key, group or rule is locked, so an open transaction of
-- the caller does not block workers and producers; only an enqueue of the same id or key waits for its outcome.

-- :: call
SELECT CAST(holdfast.enqueue_on(CAST(CAST(%(jobs)s AS text) AS jsonb), CAST(%(store)s AS text),
                                CAST(%(millis)s AS integer)) AS text)

-- :: function_enqueue_on
CREATE OR REPLACE FUNCTION holdfast.enqueue_on(wanted jsonb, meant text, millis integer)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(NULL);
    theirs text := current_setting('lock_timeout');
    their_millis double precision := extract(epoch FROM theirs::interval) * 1000;
    news holdfast.new_job[];
    answers jsonb;
    one jsonb;
    facts text;
BEGIN
    IF meant IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.schema_version WHERE store::text = meant) THEN
        RETURN jsonb_build_object('refused', 'other store');
    END IF;
    BEGIN  -- a refusal rolls back what this call stored, nothing else of the caller's transaction
        IF their_millis = 0 OR their_millis > millis THEN
            PERFORM set_config('lock_timeout', millis::text, true);
        END IF;
        PERFORM holdfast.stay_open();
        news := ARRAY(SELECT j FROM holdfast.new_jobs(wanted, at) j ORDER BY j.n);
        IF holdfast.all_differ(news, true) THEN
            answers := holdfast.join_jobs(news, at);
        ELSE
            answers := '[]';
            FOR place IN 1 .. cardinality(news) LOOP  -- as in store_jobs
                one := holdfast.join_jobs(news[place:place], at);
                answers := answers || CASE WHEN one = 'true'
                    THEN jsonb_build_array(jsonb_build_array(news[place].id, true)) ELSE one END;
            END LOOP;
        END IF;
        PERFORM set_config('lock_timeout', theirs, true);
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN RETURN jsonb_build_object('refused', 'busy');
        WHEN SQLSTATE 'HF002' THEN RETURN jsonb_build_object('refused', 'replace');
        WHEN SQLSTATE 'HF005' THEN
            GET STACKED DIAGNOSTICS facts = PG_EXCEPTION_DETAIL;
            RETURN facts::jsonb || jsonb_build_object('refused', 'sealed');
        WHEN SQLSTATE 'HF003' THEN
            GET STACKED DIAGNOSTICS facts = PG_EXCEPTION_DETAIL;
            RETURN facts::jsonb || jsonb_build_object('refused', 'duplicate');
    END;
    RETURN answers;
END $$

-- == settle_on: end a lease as succeeded inside a caller's own transaction; its worker keeps it until that commits.
-- Returns the settlement's answer, or 'other store'; the caller's transaction stays usable.
-- Concurrency: locks the job's row and, if it has one, its dead letter; no group and no rule, so an open transaction of
-- the caller does not block workers. The group is refilled by the next exchange that names this lease (R90).

-- :: call
SELECT holdfast.settle_on(CAST(CAST(%(settlement)s AS text) AS jsonb), CAST(%(store)s AS text),
                          CAST(%(millis)s AS integer))

-- :: function_settle_on
CREATE OR REPLACE FUNCTION holdfast.settle_on(s jsonb, meant text, millis integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    theirs text := current_setting('lock_timeout');
    their_millis double precision := extract(epoch FROM theirs::interval) * 1000;
    answer text;
BEGIN
    IF meant IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.schema_version WHERE store::text = meant) THEN
        RETURN 'other store';
    END IF;
    BEGIN
        IF their_millis = 0 OR their_millis > millis THEN
            PERFORM set_config('lock_timeout', millis::text, true);
        END IF;
        answer := holdfast.settle_lease(s, holdfast.store_now(NULL));
        PERFORM set_config('lock_timeout', theirs, true);
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN RETURN 'busy';
    END;
    RETURN answer;
END $$

-- == joined: what enqueue_on calls.

-- :: function_join_jobs
CREATE OR REPLACE FUNCTION holdfast.join_jobs(news holdfast.new_job[], at double precision)
RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE made text[];
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(news) n WHERE (
        SELECT @window_end(h) <= at FROM holdfast.jobs h WHERE @holds_key_of(h, n))) THEN
        PERFORM holdfast.free_keys(news, at);
    END IF;
    FOR try IN 1 .. 3 LOOP
        BEGIN
            made := holdfast.insert_joined(ARRAY(SELECT j FROM unnest(news) j WHERE NOT EXISTS (
                SELECT 1 FROM holdfast.ids i WHERE i.id = j.id) ORDER BY j.n), at);
            EXIT;
        EXCEPTION WHEN unique_violation THEN  -- a rival's transaction with the same id has just committed
            IF try = 3 THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END IF;
        END;
    END LOOP;
    IF cardinality(made) = cardinality(news) THEN RETURN 'true'; END IF;
    RETURN (SELECT jsonb_agg(CASE WHEN j.id = ANY (made) THEN jsonb_build_array(j.id, true)
                                  ELSE jsonb_build_array(holdfast.joined_before(j, at), false) END ORDER BY j.n)
            FROM (SELECT * FROM unnest(news) ORDER BY n) j);
END $$

-- :: function_insert_joined
-- Inserts the job first, then its id: so the caller's role needs no privilege on the seq's sequence, nor to delete ids.
CREATE OR REPLACE FUNCTION holdfast.insert_joined(fresh holdfast.new_job[], at double precision)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE made text[];
BEGIN
    WITH stored AS (
        INSERT INTO holdfast.jobs (@new_row, @keyed_row)
        SELECT @new_row_of(o, 'scheduled', 0, NULL), @keyed_row_of(o)
        FROM unnest(fresh) o
        ON CONFLICT DO NOTHING RETURNING id, seq
    ), named AS (INSERT INTO holdfast.ids (id, seq) SELECT id, seq FROM stored)
    SELECT array_agg(id) INTO made FROM stored;
    RETURN made;
END $$

-- :: function_joined_before
CREATE OR REPLACE FUNCTION holdfast.joined_before(new holdfast.new_job, at double precision)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE holder holdfast.jobs;
BEGIN  -- the id to return: the job's own if it is known, else that of the key's holder
    PERFORM 1 FROM holdfast.ids WHERE id = new.id;
    IF FOUND THEN RETURN new.id; END IF;
    holder := holdfast.key_holder(new.queue, new.task, new.key, new.key_global, at);
    IF holder.seq IS NULL THEN  -- the holder has just ended, or this transaction's snapshot is too old to see it
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF new.on_conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', new.key, 'existing_id', holder.id));
    ELSIF new.on_conflict = 'extend'
          OR (new.on_conflict <> 'keep' AND holder.state IN ('scheduled', 'waiting', 'ready')) THEN
        PERFORM holdfast.refuse('HF002', '{}');
    END IF;
    RETURN holder.id;
END $$
