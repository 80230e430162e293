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

-- :: function_enqueue_known
CREATE OR REPLACE FUNCTION holdfast.enqueue_known(new holdfast.new_job, its_turn bigint, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    holder holdfast.jobs;
    due double precision := new.due_at;
BEGIN
    PERFORM 1 FROM holdfast.ids WHERE id = new.id;
    IF FOUND THEN RETURN jsonb_build_array(new.id, false, false); END IF;
    holder := holdfast.key_holder(new.queue, new.task, new.key, new.key_global, at);
    SELECT * INTO holder FROM holdfast.jobs WHERE seq = holder.seq AND holds_key FOR UPDATE;
    IF NOT FOUND THEN  -- it ended a moment ago: the whole call is made anew
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF new.on_conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', new.key, 'existing_id', holder.id));
    ELSIF new.on_conflict = 'keep' OR holder.state NOT IN ('scheduled', 'waiting', 'ready') THEN
        RETURN jsonb_build_array(holder.id, false, false);
    END IF;
    IF new.on_conflict = 'debounce' AND holder.due_max IS NOT NULL THEN
        due := least(due, greatest(holder.due_max, at));
    END IF;
    UPDATE holdfast.jobs  -- in its own queue, which a global key may find another than the new call's
    SET state = CASE WHEN due > at THEN 'scheduled' WHEN new.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        priority = new.priority, grp = new.grp, lane = new.lane, rank = holdfast.rank_of(queue, new.priority),
        turn = CASE WHEN due <= at AND turn IS NOT NULL AND grp IS NOT DISTINCT FROM new.grp
                         AND priority = new.priority THEN turn
                    WHEN due <= at AND new.grp IS NULL THEN its_turn - holdfast.age_shift(queue, new.priority) END,
        max_stalls = greatest(new.max_stalls, stalls), due_at = due, expires_at = due + new.expires,
        args = new.args, revival = new.revival, options = new.options, held = held AND grp IS NOT DISTINCT FROM new.grp,
        key_until_started = new.more ? 'key_until' IS TRUE, key_window = (new.more ->> 'key_window')::double precision,
        drop_expired = new.more ? 'on_expire' IS TRUE
    WHERE seq = holder.seq;
    RETURN jsonb_build_array(holder.id, false, true);
END $$
