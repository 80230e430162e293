-- enqueue: store new jobs, all in one step.
-- Keys are locked first, then groups, in order; the unique indexes on id and live key decide. A seq is issued under the
-- group's lock, so jobs of a group are ordered as their enqueues were acknowledged.

-- :: call
SELECT holdfast.enqueue(%(jobs)s::jsonb, %(now)s)::text

-- :: function_new_jobs
CREATE OR REPLACE FUNCTION holdfast.new_jobs(wanted jsonb, at double precision)
RETURNS TABLE (n bigint, id text, task text, queue text, state text, priority integer, grp text, key text,
               lane smallint, max_stalls integer, due_at double precision, expires_at double precision, args bytea,
               revival jsonb, options bytea, on_conflict text) LANGUAGE sql STABLE AS $$
    SELECT t.n, t.j ->> 'id', t.j ->> 'task', t.j ->> 'queue',
           CASE WHEN d.due > at THEN 'scheduled' WHEN t.j ->> 'group' IS NULL THEN 'ready' ELSE 'waiting' END,
           (t.j ->> 'priority')::integer, t.j ->> 'group', t.j ->> 'key',
           (CASE WHEN p.kind IS NOT NULL THEN 2 WHEN t.j ->> 'group' IS NULL THEN 0 ELSE 1 END)::smallint,
           (t.j ->> 'max_stalls')::integer, d.due, d.due + (t.j ->> 'expires')::double precision,
           decode(t.j ->> 'args', 'base64'), nullif(t.j -> 'revival', 'null'), decode(t.j ->> 'options', 'base64'),
           t.j ->> 'on_conflict'
    FROM jsonb_array_elements(wanted) WITH ORDINALITY t(j, n)
    CROSS JOIN LATERAL (SELECT coalesce((t.j ->> 'due_at')::double precision,
                                        at + coalesce((t.j ->> 'delay')::double precision, 0)) AS due) d
    LEFT JOIN holdfast.pauses p ON p.kind = 'task' AND p.queue = '' AND p.name = t.j ->> 'task'
$$

-- :: function_enqueue
CREATE OR REPLACE FUNCTION holdfast.enqueue(wanted jsonb, given double precision) RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    keys text[];
    places holdfast.place[];
    turns bigint[];  -- by place in the batch, for those that become ready at once
    answers jsonb := '[]';
    one jsonb;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    SELECT array_agg(DISTINCT 'key:' || jsonb_build_array(j -> 'queue', j -> 'task', j -> 'key')::text)
    INTO keys FROM jsonb_array_elements(wanted) j WHERE j ->> 'key' IS NOT NULL;
    IF keys IS NOT NULL THEN PERFORM holdfast.lock_keys(keys); END IF;
    SELECT array_agg(DISTINCT ROW(g.queue, g.grp)::holdfast.place) INTO places FROM (
        SELECT j ->> 'queue' AS queue, j ->> 'group' AS grp FROM jsonb_array_elements(wanted) j
        UNION ALL
        SELECT l.queue, l.grp FROM jsonb_array_elements(wanted) j JOIN holdfast.jobs l
        ON l.queue = j ->> 'queue' AND l.task = j ->> 'task' AND l.key = j ->> 'key' AND l.key IS NOT NULL
        AND l.state IN ('scheduled', 'waiting', 'ready', 'running') WHERE j ->> 'on_conflict' = 'replace'
    ) g WHERE g.grp IS NOT NULL;
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    turns := ARRAY(SELECT nextval('holdfast.ticks') FROM generate_series(1, jsonb_array_length(wanted)));
    IF (SELECT count(DISTINCT j ->> 'id') FROM jsonb_array_elements(wanted) j) = jsonb_array_length(wanted) THEN
        answers := holdfast.store_jobs(wanted, turns, at);
    ELSE  -- an id named twice: whether the second is known depends on what became of the first
        FOR place IN 1 .. jsonb_array_length(wanted) LOOP
            one := holdfast.store_jobs(jsonb_build_array(wanted -> place - 1), turns[place:place], at);
            answers := answers || CASE WHEN one = 'true'
                THEN jsonb_build_array(jsonb_build_array(wanted -> place - 1 -> 'id', true, false)) ELSE one END;
        END LOOP;
    END IF;
    PERFORM holdfast.refill_groups(places, at);
    RETURN answers;
END $$

-- :: function_store_jobs
-- Every id once. The rows go in by place, so of two with one key the first is stored. True: all of them are new.
CREATE OR REPLACE FUNCTION holdfast.store_jobs(wanted jsonb, turns bigint[], at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE made text[];
BEGIN
    made := holdfast.insert_jobs(wanted, turns, at);
    IF cardinality(made) = jsonb_array_length(wanted) THEN RETURN 'true'; END IF;
    RETURN (SELECT jsonb_agg(CASE WHEN j.id = ANY (made) THEN jsonb_build_array(j.id, true, false)
                                  ELSE holdfast.enqueue_known(j.n, turns[j.n], wanted, at) END ORDER BY j.n)
            FROM (SELECT * FROM holdfast.new_jobs(wanted, at) ORDER BY n) j);
END $$

-- :: function_insert_jobs
-- Only an open transaction of a caller that enqueues the same id or key can make this wait (see enqueue_on.sql). That
-- may take long and groups are locked here: give up soon, let the locks go, and be called again.
CREATE OR REPLACE FUNCTION holdfast.insert_jobs(wanted jsonb, turns bigint[], at double precision)
RETURNS text[] LANGUAGE sql SET lock_timeout = '20ms' AS $$
    WITH stored AS (
        INSERT INTO holdfast.jobs (id, task, queue, state, priority, grp, key, lane, turn, max_stalls, created_at,
                                   due_at, expires_at, args, revival, options)
        SELECT o.id, o.task, o.queue, o.state, o.priority, o.grp, o.key, o.lane,
               CASE WHEN o.state = 'ready' THEN turns[o.n] END, o.max_stalls, at, o.due_at,
               o.expires_at, o.args, o.revival, o.options
        FROM (SELECT * FROM holdfast.new_jobs(wanted, at) ORDER BY n) o
        ON CONFLICT DO NOTHING RETURNING id)
    SELECT array_agg(id) FROM stored
$$

-- :: function_enqueue_known
CREATE OR REPLACE FUNCTION holdfast.enqueue_known(place bigint, its_turn bigint, wanted jsonb, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    new record;
    live holdfast.jobs;
BEGIN
    SELECT * INTO new FROM holdfast.new_jobs(wanted, at) WHERE n = place;
    PERFORM 1 FROM holdfast.jobs WHERE id = new.id;
    IF FOUND THEN RETURN jsonb_build_array(new.id, false, false); END IF;
    SELECT * INTO live FROM holdfast.jobs l WHERE l.queue = new.queue AND l.task = new.task AND l.key = new.key
    AND l.key IS NOT NULL AND l.state IN ('scheduled', 'waiting', 'ready', 'running') FOR UPDATE;
    IF NOT FOUND THEN  -- it ended a moment ago: the whole call is made anew
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF new.on_conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', new.key, 'existing_id', live.id));
    ELSIF new.on_conflict = 'keep' OR live.state = 'running' THEN
        RETURN jsonb_build_array(live.id, false, false);
    END IF;
    UPDATE holdfast.jobs
    SET state = new.state, priority = new.priority, grp = new.grp, lane = new.lane,
        turn = CASE WHEN new.state = 'ready' THEN its_turn END,
        max_stalls = greatest(new.max_stalls, stalls), due_at = new.due_at, expires_at = new.expires_at,
        args = new.args, revival = new.revival, options = new.options, held = held AND grp IS NOT DISTINCT FROM new.grp
    WHERE seq = live.seq;
    RETURN jsonb_build_array(live.id, false, true);
END $$
