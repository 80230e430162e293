-- enqueue_on: enqueue inside a caller's own transaction; seen if and only if it commits.
-- Takes the jobs, the id of the store that is meant, and how many milliseconds to wait for a rival with the same id or
-- key. Returns true (all were made), one answer per job, or why it refused; the caller's transaction stays usable.
-- Safe against a rival: the unique indexes on id and live key decide. No key, group or rule is locked, so workers and
-- producers pass while the caller takes its time; only the same id or key must wait to see which way it ends.

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
    BEGIN  -- a refusal undoes what this call stored and nothing else of the caller's transaction
        IF their_millis = 0 OR their_millis > millis THEN
            PERFORM set_config('lock_timeout', millis::text, true);
        END IF;
        PERFORM holdfast.stay_open();
        news := ARRAY(SELECT j FROM holdfast.new_jobs(wanted, at) j ORDER BY j.n);
        IF holdfast.ids_differ(news) THEN
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

-- :: function_join_jobs
CREATE OR REPLACE FUNCTION holdfast.join_jobs(news holdfast.new_job[], at double precision)
RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE made text[];
BEGIN
    WITH stored AS (
        INSERT INTO holdfast.jobs (id, task, queue, state, priority, grp, key, lane, max_stalls, created_at, due_at,
                                   expires_at, args, revival, options)
        SELECT o.id, o.task, o.queue, 'scheduled', o.priority, o.grp, o.key, o.lane, o.max_stalls, at, o.due_at,
               o.expires_at, o.args, o.revival, o.options
        FROM (SELECT * FROM unnest(news) ORDER BY n) o
        ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(id) INTO made FROM stored;
    IF cardinality(made) = cardinality(news) THEN RETURN 'true'; END IF;
    RETURN (SELECT jsonb_agg(CASE WHEN j.id = ANY (made) THEN jsonb_build_array(j.id, true)
                                  ELSE jsonb_build_array(holdfast.joined_before(j.id, j.queue, j.task, j.key,
                                                                                j.on_conflict), false) END ORDER BY j.n)
            FROM (SELECT * FROM unnest(news) ORDER BY n) j);
END $$

-- :: function_joined_before
CREATE OR REPLACE FUNCTION holdfast.joined_before(named text, queued text, tasked text, keyed text, conflict text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE live holdfast.jobs;
BEGIN  -- the id the answer names: a known one, or that of the live job with the same key
    PERFORM 1 FROM holdfast.jobs WHERE id = named;
    IF FOUND THEN RETURN named; END IF;
    SELECT * INTO live FROM holdfast.jobs l WHERE l.queue = queued AND l.task = tasked AND l.key = keyed
    AND l.key IS NOT NULL AND l.state IN ('scheduled', 'waiting', 'ready', 'running');
    IF NOT FOUND THEN  -- it ended a moment ago, or this transaction's snapshot is too old to see it
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', keyed, 'existing_id', live.id));
    ELSIF conflict = 'replace' AND live.state <> 'running' THEN
        PERFORM holdfast.refuse('HF002', '{}');
    END IF;
    RETURN live.id;
END $$
