-- dependencies: jobs that wait for others (R83 to R85). Statuses are positions in dependencies.STATUSES: 0 open,
-- 1 failed, 2 met.

-- == linked: store new jobs, some of which wait for others, and their edges, in one step.
-- Takes the jobs as enqueue does, those with parents due in the year 3000, and for each of these its place in the call,
-- id, parents and policy. Returns what enqueue does. Concurrency: a parent's row is locked before its state is read. A
-- transaction that ends it has either committed, or looks for edges in a later statement than the one that ended it.

-- :: call
SELECT holdfast.enqueue_linked(%(jobs)s::jsonb, %(links)s::jsonb, %(now)s)::text

-- :: fragment edge_status(state, policy)
-- formulas.edge_status of an edge that is not met.
CASE WHEN @state = 'succeeded' THEN 2 WHEN @state NOT IN ('dead', 'cancelled') THEN 0
     WHEN @policy = 'run' THEN 2 ELSE 1 END

-- :: function_enqueue_linked
CREATE OR REPLACE FUNCTION holdfast.enqueue_linked(wanted jsonb, links jsonb, given double precision)
RETURNS jsonb LANGUAGE plpgsql SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    answers jsonb := holdfast.enqueue(wanted, given);
    at double precision := holdfast.store_now(given);
    named text[];
    states text[];
    stored boolean;
    one jsonb;
BEGIN
    FOR one IN SELECT l FROM jsonb_array_elements(links) l LOOP
        stored := answers = 'true' OR answers -> (one ->> 'n')::integer -> 1 = 'true';
        CONTINUE WHEN NOT stored AND answers -> (one ->> 'n')::integer ->> 0 = one ->> 'id';  -- known before
        IF answers = 'true' THEN
            named := ARRAY(SELECT jsonb_array_elements_text(one -> 'after'));
        ELSE
            -- A call that was kept stands for the job that holds its key.
            named := ARRAY(SELECT coalesce((SELECT answers -> (w.n - 1)::integer ->> 0
                                            FROM jsonb_array_elements_text(wanted -> 'id') WITH ORDINALITY w(id, n)
                                            WHERE w.id = a.id LIMIT 1), a.id)
                           FROM jsonb_array_elements_text(one -> 'after') WITH ORDINALITY a(id, n) ORDER BY a.n);
        END IF;
        SELECT l.parents, l.states INTO named, states FROM holdfast.lock_parents(one ->> 'id', named, stored) l;
        IF one ->> 'before' IS NOT NULL THEN
            PERFORM holdfast.join_waiting(one ->> 'before', one ->> 'id', stored, answers, wanted -> 'id');
        END IF;
        IF stored AND named <> '{}' THEN PERFORM holdfast.link(one, named, states, at); END IF;
    END LOOP;
    RETURN answers;
END $$

-- :: function_lock_parents
-- Locks the parents and returns them, each once, with their states; refuses one that is not there. A parent has a lower
-- seq: so there are no cycles.
CREATE OR REPLACE FUNCTION holdfast.lock_parents(its_id text, named text[], stored boolean,
                                                 OUT parents text[], OUT states text[])
LANGUAGE plpgsql AS $$
DECLARE
    own bigint := (SELECT i.seq FROM holdfast.ids i WHERE i.id = its_id);
BEGIN
    parents := '{}';
    IF named = '{}' THEN RETURN; END IF;
    SELECT coalesce(array_agg(l.id), '{}'), array_agg(l.state) INTO parents, states
    FROM (SELECT j.id, j.state FROM holdfast.ids i JOIN holdfast.jobs j ON j.seq = i.seq
          WHERE i.id = ANY (named) AND (NOT stored OR j.seq < own) ORDER BY j.seq FOR NO KEY UPDATE OF j) l;
    IF cardinality(parents) = cardinality(named) THEN RETURN; END IF;  -- as nearly always
    IF EXISTS (SELECT FROM unnest(named) n WHERE n <> ALL (parents)) THEN
        PERFORM holdfast.refuse('HF008', jsonb_build_object('child_id', its_id, 'parent_id', (
            SELECT n.id FROM unnest(named) WITH ORDINALITY n(id, n) WHERE n.id <> ALL (parents) ORDER BY n.n LIMIT 1)));
    END IF;
END $$

-- :: function_join_waiting
-- Lets a job that waits for others wait for this one, too, if it was stored (R87). What is counted of its edges is
-- locked first, as by propagate: either it still waits, or whoever released it has committed.
CREATE OR REPLACE FUNCTION holdfast.join_waiting(waiting text, its_id text, stored boolean, answers jsonb, ids jsonb)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    linked boolean;
BEGIN
    PERFORM 1 FROM holdfast.dependents WHERE child = waiting FOR UPDATE;
    linked := FOUND;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = waiting)
    FOR NO KEY UPDATE;
    IF NOT FOUND OR EXISTS (SELECT FROM jsonb_array_elements_text(ids) WITH ORDINALITY w(id, n)
                            WHERE w.id = waiting AND (answers = 'true' OR answers -> (w.n - 1)::integer -> 1 = 'true'))
    THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', waiting, 'what', 'job')); END IF;
    IF NOT linked OR j.state <> 'scheduled' OR j.due_at <> @DUE_AFTER_PARENTS THEN
        PERFORM holdfast.refuse_state(j, 'join');
    END IF;
    IF NOT stored THEN RETURN; END IF;
    INSERT INTO holdfast.edges (parent, child, status) VALUES (its_id, waiting, 0);
    UPDATE holdfast.dependents SET pending = pending + 1 WHERE child = waiting;
END $$

-- :: function_link
-- Stores the edges of a new job whose parents are locked, and in these states.
CREATE OR REPLACE FUNCTION holdfast.link(job jsonb, parents text[], states text[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its_id text := job ->> 'id';
    waits integer;
    broken integer;
BEGIN
    WITH linked AS (
        INSERT INTO holdfast.edges (parent, child, status)
        SELECT p.id, its_id, @edge_status(p.state, job ->> 'on_parent_failure')
        FROM unnest(parents, states) p(id, state) RETURNING status)
    SELECT count(*) FILTER (WHERE status < 2), count(*) FILTER (WHERE status = 1) INTO waits, broken FROM linked;
    INSERT INTO holdfast.dependents (child, pending, failed, policy, delay, due_at)
    VALUES (its_id, waits, broken, job ->> 'on_parent_failure', (job ->> 'delay')::double precision,
            (job ->> 'due_at')::double precision);
    IF broken > 0 OR waits = 0 THEN PERFORM holdfast.resolve(its_id, at); END IF;
END $$

-- == forget: remove the edges of removed jobs, and find jobs that may not be removed yet.
-- Concurrency: the caller has locked the rows of the jobs.

-- :: function_awaited_by
-- A job that waits for this one.
CREATE OR REPLACE FUNCTION holdfast.awaited_by(named text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT e.child FROM holdfast.edges e JOIN holdfast.ids i ON i.id = e.child JOIN holdfast.jobs c ON c.seq = i.seq
    WHERE e.parent = named AND e.status = 0 AND c.state = 'scheduled' AND c.due_at = @DUE_AFTER_PARENTS
    ORDER BY e.child LIMIT 1
$$

-- :: function_without_needed
-- The jobs that may be pruned: children that have not finished need their parents. The others are kept a while.
CREATE OR REPLACE FUNCTION holdfast.without_needed(past bigint[], at double precision)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE needed bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.edges) THEN RETURN past; END IF;
    needed := ARRAY(
        SELECT j.seq FROM holdfast.jobs j WHERE j.seq = ANY (past)
        AND (EXISTS (SELECT FROM holdfast.propagating p WHERE p.parent = j.id)
             OR EXISTS (SELECT FROM holdfast.edges e JOIN holdfast.ids i ON i.id = e.child
                        JOIN holdfast.jobs c ON c.seq = i.seq
                        WHERE e.parent = j.id AND c.state IN ('scheduled', 'waiting', 'ready', 'running'))));
    UPDATE holdfast.jobs SET prune_at = greatest(prune_at, at + @REMEMBER_SECONDS_MIN)
    WHERE seq = ANY (needed) AND prune_at IS NOT NULL;
    RETURN ARRAY(SELECT p FROM unnest(past) p WHERE p <> ALL (needed));
END $$

-- :: function_forget_edges
-- Of jobs that go: those that waited for them count them no longer.
CREATE OR REPLACE FUNCTION holdfast.forget_edges(past bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE gone text[];
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.edges) THEN RETURN; END IF;
    gone := ARRAY(SELECT j.id FROM holdfast.jobs j WHERE j.seq = ANY (past));
    DELETE FROM holdfast.dependents WHERE child = ANY (gone);
    WITH cut AS (
        DELETE FROM holdfast.edges e WHERE e.parent = ANY (gone) RETURNING e.child, e.status
    ), counted AS (
        SELECT c.child, count(*) FILTER (WHERE c.status < 2) AS waits, count(*) FILTER (WHERE c.status = 1) AS broken
        FROM cut c GROUP BY c.child)
    UPDATE holdfast.dependents d SET pending = d.pending - c.waits, failed = d.failed - c.broken
    FROM counted c WHERE d.child = c.child;
    DELETE FROM holdfast.edges WHERE child = ANY (gone);
    DELETE FROM holdfast.propagating WHERE parent = ANY (gone);
END $$

-- == relatives: read edges. Never writes.

-- A page of the edges first: without statistics the planner would read all of a job's relatives to sort them.
-- :: parents
SELECT j.id, j.task, j.state, e.status, CASE WHEN %(values)s AND j.state = 'succeeded' THEN j.value END
FROM (SELECT parent, status FROM holdfast.edges
      WHERE child = %(id)s AND parent > %(beyond)s ORDER BY parent LIMIT %(limit)s) e
JOIN holdfast.ids i ON i.id = e.parent JOIN holdfast.jobs j ON j.seq = i.seq ORDER BY e.parent

-- :: children
SELECT j.id, j.task, j.state, e.status, NULL::bytea
FROM (SELECT child, status FROM holdfast.edges
      WHERE parent = %(id)s AND child > %(beyond)s ORDER BY child LIMIT %(limit)s) e
JOIN holdfast.ids i ON i.id = e.child JOIN holdfast.jobs j ON j.seq = i.seq ORDER BY e.child

-- :: pending
SELECT pending FROM holdfast.dependents WHERE child = %(id)s

-- :: edges
SELECT e.parent, e.child, e.status, d.policy, d.delay, d.due_at
FROM holdfast.edges e JOIN holdfast.dependents d ON d.child = e.child
WHERE (e.child, e.parent) > (%(child)s, %(parent)s) ORDER BY e.child, e.parent LIMIT %(limit)s

-- :: dependents
SELECT child, pending, failed FROM holdfast.dependents ORDER BY child

-- :: propagating
SELECT parent FROM holdfast.propagating ORDER BY parent

-- :: carry
-- Edges of another store; those that may be out of date are propagated once the store is open.
WITH shipped AS (
    SELECT r.*, CASE r.status WHEN 'open' THEN 0 WHEN 'failed' THEN 1 ELSE 2 END AS number
    FROM jsonb_to_recordset(%(edges)s::jsonb) AS r(parent text, child text, status text, on_parent_failure text,
        delay double precision, due_at double precision)
), stored AS (
    INSERT INTO holdfast.edges (parent, child, status) SELECT parent, child, number FROM shipped
    ON CONFLICT DO NOTHING RETURNING parent, child, status
), counted AS (
    INSERT INTO holdfast.dependents (child, pending, failed, policy, delay, due_at)
    SELECT w.child, count(*) FILTER (WHERE t.status < 2), count(*) FILTER (WHERE t.status = 1),
           min(w.on_parent_failure), min(w.delay), min(w.due_at)
    FROM stored t JOIN shipped w ON w.parent = t.parent AND w.child = t.child GROUP BY w.child
    ON CONFLICT (child) DO UPDATE SET pending = dependents.pending + excluded.pending,
                                      failed = dependents.failed + excluded.failed)
INSERT INTO holdfast.propagating (parent) SELECT DISTINCT parent FROM stored WHERE status < 2 ON CONFLICT DO NOTHING
