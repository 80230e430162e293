-- store: put the rows of new jobs into the table, and say what became of each.
-- Takes jobs as enqueue.sql read them. Returns true (all are new), or an answer for each.
-- Safe against a rival: the caller locked the keys and groups named; the unique indexes of ids and keys decide.

-- :: function_insert_fresh
-- All or none, in two thirds of the time and of the log that asking for each id first would take. False: an id is known
-- or named twice, and nothing was stored. Not for a few jobs: there a known id is likelier, and a try that fails leaves
-- a dead row behind. It may wait as briefly as insert_plain.
CREATE OR REPLACE FUNCTION holdfast.insert_fresh(news holdfast.new_job[], at double precision)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
    WITH stored AS (
        INSERT INTO holdfast.jobs (id, task, queue, state, priority, grp, lane, rank, turn, max_stalls, created_at,
                                   due_at, expires_at, args, revival, options)
        SELECT o.id, o.task, o.queue, o.state, o.priority, o.grp, o.lane, o.priority,
               CASE WHEN o.state = 'ready' THEN nextval('holdfast.ticks') END, o.max_stalls, at, o.due_at,
               o.due_at + o.expires, o.args, o.revival, o.options
        FROM (SELECT * FROM unnest(news) ORDER BY n) o RETURNING id, seq)
    INSERT INTO holdfast.ids (id, seq) SELECT id, seq FROM stored;
    RETURN true;
EXCEPTION WHEN unique_violation THEN RETURN false;
END $$

-- :: function_store_jobs
CREATE OR REPLACE FUNCTION holdfast.store_jobs(news holdfast.new_job[], plain boolean, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE  -- turns by place in the call, for those that become ready at once
    turns bigint[] := ARRAY(SELECT nextval('holdfast.ticks') FROM generate_series(1, cardinality(news)));
    answers jsonb := '[]';
    one jsonb;
BEGIN
    IF holdfast.all_differ(news, plain) THEN RETURN holdfast.store_distinct(news, turns, plain, at); END IF;
    FOR place IN 1 .. cardinality(news) LOOP  -- what becomes of the second depends on what became of the first
        one := holdfast.store_distinct(news[place:place], turns, plain, at);
        answers := answers || CASE WHEN one = 'true'
            THEN jsonb_build_array(jsonb_build_array(news[place].id, true, false)) ELSE one END;
    END LOOP;
    RETURN answers;
END $$

-- :: function_store_distinct
-- Every id and every key once. True: all of them are new.
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
-- Only an open transaction of a caller that enqueues the same id or key can make these wait (see enqueue_on.sql). That
-- may take long and groups are locked here: give up soon, let the locks go, and be called again.
CREATE OR REPLACE FUNCTION holdfast.insert_plain(news holdfast.new_job[], turns bigint[], at double precision)
RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE got record;
BEGIN
    got := holdfast.take_ids(news);
    INSERT INTO holdfast.jobs (seq, id, task, queue, state, priority, grp, lane, rank, turn, max_stalls, created_at,
                               due_at, expires_at, args, revival, options)
    SELECT o.unnest, o.id, o.task, o.queue, o.state, o.priority, o.grp, o.lane, o.priority,
           CASE WHEN o.state = 'ready' THEN turns[o.n] END, o.max_stalls, at, o.due_at,
           o.due_at + o.expires, o.args, o.revival, o.options
    FROM unnest(got.fresh, got.seqs) o;
    RETURN ARRAY(SELECT f.id FROM unnest(got.fresh) f);
END $$

-- :: function_insert_jobs
-- Those that have a key, or say what few calls say, or go into a store where queues age their jobs.
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
        INSERT INTO holdfast.jobs (seq, id, task, queue, state, priority, grp, key, lane, rank, turn, max_stalls, created_at,
            due_at, expires_at, args, revival, options, holds_key, key_global, key_until_started, key_window, due_max,
            drop_expired)
        SELECT o.unnest, o.id, o.task, o.queue, o.state, o.priority, o.grp, o.key, o.lane,
               CASE WHEN b.aging IS NULL THEN o.priority ELSE 0 END,
               CASE WHEN o.state = 'ready' THEN turns[o.n] - CASE WHEN b.aging IS NULL THEN 0
                    ELSE floor(o.priority * b.aging * 1000000)::bigint END END, o.max_stalls, at,
               o.due_at, o.due_at + o.expires, o.args, o.revival, o.options, o.key IS NOT NULL, o.key_global,
               o.more ? 'key_until' IS TRUE, (o.more ->> 'key_window')::double precision,
               at + (o.more ->> 'wait_max')::double precision, o.more ? 'on_expire' IS TRUE
        FROM unnest(fresh, seqs) o LEFT JOIN holdfast.bounds b ON b.kind = 'queue' AND b.name = o.queue ORDER BY o.n
        ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(id) INTO made FROM stored;
    PERFORM holdfast.drop_ids(fresh, made);
    RETURN made;
END $$
