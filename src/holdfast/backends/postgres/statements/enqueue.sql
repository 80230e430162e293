-- enqueue: stores new jobs, one by a fast path or many at once, and returns the result for each.

-- == single: fast path for one job without group and key, the common case, at a quarter of the general path's cost.
-- Takes the job's fields and now. Returns whether this call created the job; false means its id is already known.
-- Concurrency: it holds the rules lock in shared mode, so no seal, pause or limit can change meanwhile; the unique
-- index of ids decides. It can only wait for a caller's open transaction that enqueues the same id: lock_timeout makes
-- it give up soon and the client calls again, so that nobody queues for the rules lock behind it.

-- :: call
SELECT holdfast.enqueue_single(%(id)s, %(task)s, %(queue)s, %(priority)s, %(delay)s, %(due_at)s, %(expires)s,
                               %(max_stalls)s, %(args)s, %(revival)s, %(options)s, %(now)s)::text

-- :: direct
SELECT holdfast.enqueue_single($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, NULL)

-- :: fragment new_row
-- The columns of every new job. Those of keys and rare options are in keyed_row.
id, task, queue, state, priority, grp, lane, rank, turn, max_stalls, created_at, due_at, expires_at, args, revival,
options

-- :: fragment new_row_of(o, state, rank, turn)
-- Their values, of the new_job o.
@o.id, @o.task, @o.queue, @state, @o.priority, @o.grp, @o.lane, @rank, @turn, @o.max_stalls, at, @o.due_at,
@o.due_at + @o.expires, @o.args, @o.revival, @o.options

-- :: fragment keyed_row
key, holds_key, key_global, key_until_started, key_window, due_max, drop_expired, ordinal

-- :: fragment keyed_row_of(o)
@o.key, @o.key IS NOT NULL, @o.key_global, @o.more ? 'key_until' IS TRUE,
(@o.more ->> 'key_window')::double precision, at + (@o.more ->> 'wait_max')::double precision,
@o.more ? 'on_expire' IS TRUE, (@o.more ->> 'order')::bigint

-- :: function_enqueue_single
CREATE OR REPLACE FUNCTION holdfast.enqueue_single(
    named text, tasked text, queued text, prior integer, delay double precision, due double precision,
    expiry double precision, stalls_max integer, arguments bytea, revived jsonb, said bytea, given double precision
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
    at double precision;
    sealed text;
    ruled boolean;  -- any task is paused, or any queue or task has rules in force
    its_lane smallint := 0;
    ages double precision;
    tick bigint;
    number bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('holdfast.rules'), 0);
    at := coalesce(given, extract(epoch FROM clock_timestamp())::double precision);
    SELECT (SELECT s.record FROM holdfast.seal s WHERE s.closed),
           EXISTS (SELECT FROM holdfast.pauses p WHERE p.kind = 'task') OR EXISTS (SELECT FROM holdfast.bounds)
    INTO sealed, ruled;
    IF sealed IS NOT NULL THEN PERFORM holdfast.refuse('HF005', sealed::jsonb); END IF;
    IF ruled THEN
        SELECT @lane(tasked, NULL),
               (SELECT b.aging FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = queued)
        INTO its_lane, ages;
    END IF;
    tick := nextval('holdfast.ticks');
    IF tick < at * 1000000 THEN
        PERFORM holdfast.keep_up(at);
        tick := nextval('holdfast.ticks');
    END IF;
    number := nextval('holdfast.jobs_seq_seq');
    INSERT INTO holdfast.ids (id, seq) VALUES (named, number) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    due := coalesce(due, at + coalesce(delay, 0));
    INSERT INTO holdfast.jobs (seq, @new_row)
    VALUES (number, named, tasked, queued, CASE WHEN due > at THEN 'scheduled' ELSE 'ready' END, prior, NULL, its_lane,
            @rank(prior, ages), CASE WHEN due <= at THEN @turn(tick, prior, ages) END,
            stalls_max, at, due, due + expiry, arguments, revived, said);
    RETURN true;
END $$

-- == enqueue: store new jobs, all in one step; the inserts are in section `store`.
-- Takes the jobs as JSON, by column. Returns true (all are new), or for each job its id, whether this call created it,
-- and whether it replaced another; and, for a call of one new job whose group has no room for it yet, true.
-- Concurrency: keys are locked first, then groups, in order; the unique indexes of ids and keys decide. A seq is issued
-- under the group's lock, so the jobs of a group are ordered as their enqueues were acknowledged.

-- :: call
SELECT holdfast.enqueue(%(jobs)s::jsonb, %(now)s)::text

-- :: function_order_window
-- A function of its own, so that who enqueues jobs without an order needs no right to read the queues.
CREATE OR REPLACE FUNCTION holdfast.order_window(named text) RETURNS double precision LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT q.order_window FROM holdfast.queues q WHERE q.name = named);
END $$

-- :: function_new_jobs
-- The jobs of a call, by column: shared values once, in `same`, differing values as lists. Parsing a thousand jobs this
-- way costs the server a fifth of what a thousand JSON objects cost.
CREATE OR REPLACE FUNCTION holdfast.new_jobs(wanted jsonb, at double precision)
RETURNS SETOF holdfast.new_job LANGUAGE sql STABLE AS $$
    WITH told AS (
        SELECT e.n, e.id, e.args, coalesce(e.task, s.task) AS task, coalesce(e.queue, s.queue) AS queue,
               coalesce(e.priority::integer, s.priority) AS priority, coalesce(e.grp, s."group") AS grp,
               coalesce(e.key, s.key) AS key, coalesce(e.on_conflict, s.on_conflict) AS on_conflict,
               coalesce(e.due_at::double precision, s.due_at,
                        at + coalesce(e.delay::double precision, s.delay, CASE
                            WHEN coalesce(e.more::jsonb, s.more) ? 'order' AND coalesce(e.grp, s."group") IS NOT NULL
                            THEN holdfast.order_window(coalesce(e.queue, s.queue))
                        END, 0)) AS due_at,
               coalesce(e.expires::double precision, s.expires) AS expires,
               coalesce(e.max_stalls::integer, s.max_stalls) AS max_stalls,
               coalesce(e.revival::jsonb, s.revival) AS revival, coalesce(e.options, s.options) AS options,
               coalesce(e.more::jsonb, s.more) AS more
        FROM ROWS FROM (
            jsonb_array_elements_text(wanted -> 'id'), jsonb_array_elements_text(wanted -> 'args'),
            jsonb_array_elements_text(wanted -> 'task'), jsonb_array_elements_text(wanted -> 'queue'),
            jsonb_array_elements_text(wanted -> 'priority'), jsonb_array_elements_text(wanted -> 'group'),
            jsonb_array_elements_text(wanted -> 'key'), jsonb_array_elements_text(wanted -> 'on_conflict'),
            jsonb_array_elements_text(wanted -> 'delay'), jsonb_array_elements_text(wanted -> 'due_at'),
            jsonb_array_elements_text(wanted -> 'expires'), jsonb_array_elements_text(wanted -> 'max_stalls'),
            jsonb_array_elements_text(wanted -> 'revival'), jsonb_array_elements_text(wanted -> 'options'),
            jsonb_array_elements_text(wanted -> 'more')
        ) WITH ORDINALITY e(id, args, task, queue, priority, grp, key, on_conflict, delay, due_at, expires, max_stalls,
                            revival, options, more, n)
        CROSS JOIN jsonb_to_record(wanted -> 'same') s(
            task text, queue text, priority integer, "group" text, key text, on_conflict text, delay double precision,
            due_at double precision, expires double precision, max_stalls integer, revival jsonb, options text,
            more jsonb)
    )
    SELECT t.n, t.id, t.task, t.queue,
           CASE WHEN t.due_at > at THEN 'scheduled' WHEN t.grp IS NULL THEN 'ready' ELSE 'waiting' END,
           t.priority, t.grp, t.key,
           (@lane_in_bulk(t.task, t.grp))::smallint, t.max_stalls, t.due_at, t.expires, decode(t.args, 'base64'), nullif(t.revival, 'null'),
           decode(t.options, 'base64'), t.on_conflict, t.more ? 'key_scope' IS TRUE, t.more
    FROM told t
$$

-- :: function_has_any
CREATE OR REPLACE FUNCTION holdfast.has_any(wanted jsonb, field text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT wanted -> field IS NOT NULL OR wanted -> 'same' ->> field IS NOT NULL
$$

-- :: function_enqueue
CREATE OR REPLACE FUNCTION holdfast.enqueue(wanted jsonb, given double precision) RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    keyed boolean := holdfast.has_any(wanted, 'key');
    plain boolean;  -- no keys, no rare options, and no queue has aging
    news holdfast.new_job[];
    places holdfast.place[];
    answers jsonb;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    news := ARRAY(SELECT j FROM holdfast.new_jobs(wanted, at) j ORDER BY j.n);
    IF keyed THEN
        PERFORM holdfast.lock_keys(array_agg(holdfast.key_name(j.queue, j.task, j.key, j.key_global)))
        FROM unnest(news) j WHERE j.key IS NOT NULL;
    END IF;
    IF keyed OR holdfast.has_any(wanted, 'group') THEN places := holdfast.places_new(news); END IF;
    IF places IS NOT NULL THEN PERFORM holdfast.lock_groups(places); END IF;
    PERFORM holdfast.keep_up(at);
    plain := NOT keyed AND NOT holdfast.has_any(wanted, 'more') AND NOT EXISTS (
        SELECT 1 FROM holdfast.bounds b WHERE b.aging IS NOT NULL);
    IF plain AND cardinality(news) >= 20 AND holdfast.insert_fresh(news, at) THEN
        answers := 'true';
    ELSE
        answers := holdfast.store_jobs(news, plain, at);
    END IF;
    IF places IS NULL THEN RETURN answers; END IF;
    PERFORM holdfast.refill_groups(places, at);
    IF cardinality(news) = 1 AND answers = 'true' AND (
        SELECT j.state = 'waiting' FROM holdfast.ids i JOIN holdfast.jobs j ON j.seq = i.seq WHERE i.id = news[1].id)
    THEN RETURN jsonb_build_array(jsonb_build_array(news[1].id, true, false, true)); END IF;
    RETURN answers;
END $$

-- :: function_places_new
CREATE OR REPLACE FUNCTION holdfast.places_new(news holdfast.new_job[]) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN  -- the groups of the new jobs, and those that replaced jobs leave or enter
    RETURN (SELECT array_agg(DISTINCT ROW(g.queue, g.grp)::holdfast.place) FROM (
        SELECT j.queue, j.grp FROM unnest(news) j
        UNION ALL
        SELECT h.queue, t.grp FROM unnest(news) j JOIN holdfast.jobs h ON @holds_key_of(h, j)
        CROSS JOIN LATERAL (VALUES (h.grp), (j.grp)) t(grp)
        WHERE j.on_conflict IN ('replace', 'debounce')
    ) g WHERE g.grp IS NOT NULL);
END $$

-- == store: insert the rows of new jobs, and return the result for each.
-- Takes jobs as new_jobs returns them. Returns true (all are new), or one answer per job.
-- Concurrency: the caller has locked the jobs' keys and groups; the unique indexes of ids and keys decide.

-- :: function_insert_fresh
-- All or none, with two thirds of the time and WAL that checking each id first would take. False: an id is known or
-- occurs twice, and nothing was stored. Not for a few jobs: there a known id is more likely, and a failed attempt
-- leaves a dead row behind. Its lock_timeout is as short as insert_plain's.
CREATE OR REPLACE FUNCTION holdfast.insert_fresh(news holdfast.new_job[], at double precision)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
    WITH stored AS (
        INSERT INTO holdfast.jobs (@new_row)
        SELECT @new_row_of(o, o.state, o.priority, CASE WHEN o.state = 'ready' THEN nextval('holdfast.ticks') END)
        FROM (SELECT * FROM unnest(news) ORDER BY n) o RETURNING id, seq)
    INSERT INTO holdfast.ids (id, seq) SELECT id, seq FROM stored;
    RETURN true;
EXCEPTION WHEN unique_violation THEN RETURN false;
END $$

-- :: function_store_jobs
CREATE OR REPLACE FUNCTION holdfast.store_jobs(news holdfast.new_job[], plain boolean, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE  -- turns by position in the call, for jobs that become ready at once
    turns bigint[] := ARRAY(SELECT nextval('holdfast.ticks') FROM generate_series(1, cardinality(news)));
    answers jsonb := '[]';
    one jsonb;
BEGIN
    IF holdfast.all_differ(news, plain) THEN RETURN holdfast.store_distinct(news, turns, plain, at); END IF;
    FOR place IN 1 .. cardinality(news) LOOP  -- the outcome of a duplicate depends on the job before it
        one := holdfast.store_distinct(news[place:place], turns, plain, at);
        answers := answers || CASE WHEN one = 'true'
            THEN jsonb_build_array(jsonb_build_array(news[place].id, true, false)) ELSE one END;
    END LOOP;
    RETURN answers;
END $$

-- :: function_store_distinct
-- Each id and each key occurs once. Returns true if all jobs are new.
CREATE OR REPLACE FUNCTION holdfast.store_distinct(news holdfast.new_job[], turns bigint[], plain boolean,
                                                   at double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE made text[] := CASE WHEN plain THEN holdfast.insert_plain(news, turns, at)
                            ELSE holdfast.insert_jobs(news, turns, at) END;
BEGIN
    IF cardinality(made) = cardinality(news) THEN RETURN 'true'; END IF;
    RETURN (SELECT jsonb_agg(CASE WHEN j.id = ANY (made) THEN jsonb_build_array(j.id, true, false)
                                  ELSE holdfast.enqueue_known(j, turns[j.n], at) END ORDER BY j.n)
            FROM (SELECT * FROM unnest(news) ORDER BY n) j);
END $$

-- :: function_insert_plain
-- These inserts can only wait for a caller's open transaction that enqueues the same id or key
-- (caller_transaction.sql). That may take long, and groups are locked here: give up soon, release the locks, and let
-- the client call again.
CREATE OR REPLACE FUNCTION holdfast.insert_plain(news holdfast.new_job[], turns bigint[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE got record;
BEGIN
    got := holdfast.take_ids(news);
    INSERT INTO holdfast.jobs (seq, @new_row)
    SELECT o.unnest, @new_row_of(o, o.state, o.priority, CASE WHEN o.state = 'ready' THEN turns[o.n] END)
    FROM unnest(got.fresh, got.seqs) o;
    RETURN ARRAY(SELECT f.id FROM unnest(got.fresh) f);
END $$

-- :: function_insert_jobs
-- For jobs with a key or rare options, and for stores in which a queue has aging.
CREATE OR REPLACE FUNCTION holdfast.insert_jobs(news holdfast.new_job[], turns bigint[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
    fresh holdfast.new_job[];
    seqs bigint[];
    made text[];
BEGIN
    PERFORM holdfast.free_keys(news, at);
    SELECT t.fresh, t.seqs INTO fresh, seqs FROM holdfast.take_ids(news) t;
    WITH stored AS (
        INSERT INTO holdfast.jobs (seq, @new_row, @keyed_row)
        SELECT o.unnest, @new_row_of(o, o.state, @rank(o.priority, b.aging),
                   CASE WHEN o.state = 'ready' THEN @turn(turns[o.n], o.priority, b.aging) END),
               @keyed_row_of(o)
        FROM unnest(fresh, seqs) o LEFT JOIN holdfast.bounds b ON b.kind = 'queue' AND b.name = o.queue ORDER BY o.n
        ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(id) INTO made FROM stored;
    PERFORM holdfast.drop_ids(fresh, made);
    RETURN made;
END $$

-- == ids: which ids are known. A job's id is taken before its row is stored.
-- Concurrency: the unique index of ids decides. It can only wait for an open transaction that takes the same id (see
-- insert_plain).

-- :: function_take_ids
-- Takes the ids of these jobs (no id occurs twice). Returns those whose ids were not known, in order, and their seqs.
CREATE OR REPLACE FUNCTION holdfast.take_ids(news holdfast.new_job[], OUT fresh holdfast.new_job[], OUT seqs bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    WITH numbered AS MATERIALIZED (
        SELECT o.id, nextval('holdfast.jobs_seq_seq') AS seq
        FROM (SELECT j.id FROM unnest(news) j ORDER BY j.n) o
    ), taken AS (INSERT INTO holdfast.ids (id, seq) SELECT id, seq FROM numbered ON CONFLICT DO NOTHING RETURNING seq)
    SELECT coalesce(array_agg(seq ORDER BY seq), '{}') INTO seqs FROM taken;
    fresh := news;
    IF cardinality(seqs) < cardinality(news) THEN
        fresh := ARRAY(SELECT j FROM unnest(news) j JOIN holdfast.ids i ON i.id = j.id
                       WHERE i.seq = ANY (seqs) ORDER BY j.n);
    END IF;
END $$

-- :: function_drop_ids
CREATE OR REPLACE FUNCTION holdfast.drop_ids(taken holdfast.new_job[], made text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- for jobs that were not stored because their keys were held
    IF cardinality(taken) > coalesce(cardinality(made), 0) THEN
        DELETE FROM holdfast.ids i USING unnest(taken) t WHERE i.id = t.id AND (made IS NULL OR t.id <> ALL (made));
    END IF;
END $$
