-- enqueue: take in new jobs, all in one step (store.sql puts them into the table).
-- Takes the jobs as JSON, by column. Returns true (all are new), or for each job its id, whether this call made it, and
-- whether it replaced another.
-- Safe against a rival: keys are locked first, then groups, in order; the unique indexes of ids and keys decide. A seq
-- is issued under the group's lock, so jobs of a group are ordered as their enqueues were acknowledged.

-- :: call
SELECT holdfast.enqueue(%(jobs)s::jsonb, %(now)s)::text

-- :: function_new_jobs
-- The jobs of a call. They come by column: what they share is said once, in `same`, and what differs is a list. Read so,
-- a thousand jobs cost the server a fifth of what a thousand JSON objects cost it.
CREATE OR REPLACE FUNCTION holdfast.new_jobs(wanted jsonb, at double precision)
RETURNS SETOF holdfast.new_job LANGUAGE sql STABLE AS $$
    WITH told AS (
        SELECT e.n, e.id, e.args, coalesce(e.task, s.task) AS task, coalesce(e.queue, s.queue) AS queue,
               coalesce(e.priority::integer, s.priority) AS priority, coalesce(e.grp, s."group") AS grp,
               coalesce(e.key, s.key) AS key, coalesce(e.on_conflict, s.on_conflict) AS on_conflict,
               coalesce(e.due_at::double precision, s.due_at,
                        at + coalesce(e.delay::double precision, s.delay, 0)) AS due_at,
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
           (CASE WHEN t.task = ANY (ARRAY(SELECT p.name FROM holdfast.pauses p WHERE p.kind = 'task')) THEN 2
                 WHEN t.task = ANY (ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'task'))
                 THEN (SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = t.task)
                 WHEN t.grp IS NULL THEN 0 ELSE 1 END)::smallint,
           t.max_stalls, t.due_at, t.expires, decode(t.args, 'base64'), nullif(t.revival, 'null'),
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
    plain boolean;  -- nothing said that few calls say, and no queue ages its jobs
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
    IF places IS NOT NULL THEN PERFORM holdfast.refill_groups(places, at); END IF;
    RETURN answers;
END $$

-- :: function_places_new
CREATE OR REPLACE FUNCTION holdfast.places_new(news holdfast.new_job[]) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN  -- their groups, and those that a replaced job leaves
    RETURN (SELECT array_agg(DISTINCT ROW(g.queue, g.grp)::holdfast.place) FROM (
        SELECT j.queue, j.grp FROM unnest(news) j
        UNION ALL
        SELECT h.queue, t.grp FROM unnest(news) j JOIN holdfast.jobs h
        ON h.holds_key AND h.task = j.task AND h.key = j.key AND h.key_global = j.key_global
        AND CASE WHEN h.key_global THEN '' ELSE h.queue END = CASE WHEN j.key_global THEN '' ELSE j.queue END
        CROSS JOIN LATERAL (VALUES (h.grp), (j.grp)) t(grp)
        WHERE j.on_conflict IN ('replace', 'debounce')
    ) g WHERE g.grp IS NOT NULL);
END $$
