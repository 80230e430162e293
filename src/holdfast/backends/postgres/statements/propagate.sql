-- propagate: update jobs when those that they wait for end (R84, R85). Statuses as in dependencies.sql.

-- == propagate: bring edges in line with their parents' new states, and the children with their edges. Bounded.
-- Concurrency: a parent is taken with its row locked, so its state is the latest one; parents that others have locked are
-- left to them, or to a later call. Children are locked in order before the first is changed.

-- :: function_note_ended
-- Jobs that finished or came back: remember those that others wait for. Called after the statement that changed them.
CREATE OR REPLACE FUNCTION holdfast.note_ended(seqs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.edges) THEN RETURN; END IF;
    INSERT INTO holdfast.propagating (parent)
    SELECT j.id FROM unnest(seqs) WITH ORDINALITY s(seq, n) JOIN holdfast.jobs j ON j.seq = s.seq
    WHERE EXISTS (SELECT FROM holdfast.edges e WHERE e.parent = j.id AND e.status < 2)
    ORDER BY s.n ON CONFLICT (parent) DO NOTHING;
END $$

-- :: function_tell
-- Propagate, as far as one step goes, if anything is to be.
CREATE OR REPLACE FUNCTION holdfast.tell(at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_settling() THEN RETURN; END IF;  -- settle_with tells them when its jobs are stored
    IF EXISTS (SELECT FROM holdfast.propagating) THEN PERFORM holdfast.propagate(@PROPAGATE_MAX, at); END IF;
END $$

-- :: function_tell_of_successes
-- The common case of both: jobs that this transaction has just ended as succeeded, and nothing else to propagate. Their
-- rows are still locked, so they need no note that this step would take out again: only what its bound does not reach is
-- noted. Called after the statement that ended them, where some job has an edge.
CREATE OR REPLACE FUNCTION holdfast.tell_of_successes(seqs bigint[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parents text[];
    children text[];
    number integer;
    looked integer;
BEGIN
    IF holdfast.is_settling() OR EXISTS (SELECT FROM holdfast.propagating) THEN
        PERFORM holdfast.note_ended(seqs), holdfast.tell(at);
        RETURN;
    END IF;
    WITH line AS MATERIALIZED (
        SELECT s.n, j.id AS parent, e.child
        FROM unnest(seqs) WITH ORDINALITY s(seq, n) JOIN holdfast.jobs j ON j.seq = s.seq
        CROSS JOIN LATERAL (SELECT o.child FROM holdfast.edges o WHERE o.parent = j.id AND o.status < 2
                            ORDER BY o.status, o.child LIMIT @PROPAGATE_MAX) e LIMIT @PROPAGATE_MAX)
    SELECT ARRAY(SELECT l.parent FROM line l GROUP BY l.parent ORDER BY min(l.n)), array_agg(DISTINCT l.child), count(*)
    INTO parents, children, number FROM line l;
    IF number = 0 THEN RETURN; END IF;
    PERFORM 1 FROM holdfast.dependents d WHERE d.child = ANY (children) ORDER BY d.child FOR UPDATE;
    looked := holdfast.meet_edges(parents, @PROPAGATE_MAX, at);
    IF number >= @PROPAGATE_MAX THEN
        PERFORM holdfast.note_ended(seqs);
    ELSIF EXISTS (SELECT FROM holdfast.propagating) THEN  -- a child came back, which others wait for
        PERFORM holdfast.propagate(@PROPAGATE_MAX - looked, at);
    END IF;
END $$

-- :: function_propagate
-- Returns how many edges and parents were looked at. Parents that have succeeded are taken together: no end of another
-- job changes that. Any other one is taken alone, because the end of its child may change the state of the next.
CREATE OR REPLACE FUNCTION holdfast.propagate(most integer, at double precision) RETURNS integer LANGUAGE plpgsql
SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    numbers bigint[];
    parents text[];
    states text[];
    run integer;
    last bigint := 0;
    done integer := 0;
    size integer := most;
    looked integer;
BEGIN
    PERFORM 1 FROM holdfast.dependents d WHERE d.child = ANY (ARRAY(
        SELECT e.child FROM (SELECT parent FROM holdfast.propagating ORDER BY number LIMIT most) p
        CROSS JOIN LATERAL (SELECT o.child FROM holdfast.edges o WHERE o.parent = p.parent AND o.status < 2
                            ORDER BY o.status, o.child LIMIT most) e LIMIT most)) ORDER BY d.child FOR UPDATE;
    WHILE done < most LOOP
        SELECT array_agg(n.number ORDER BY n.number), array_agg(n.parent ORDER BY n.number),
               array_agg(n.state ORDER BY n.number) INTO numbers, parents, states
        FROM (SELECT p.number, p.parent, j.state
              FROM holdfast.propagating p JOIN holdfast.ids i ON i.id = p.parent JOIN holdfast.jobs j ON j.seq = i.seq
              WHERE p.number > last ORDER BY p.number LIMIT size
              FOR UPDATE OF p SKIP LOCKED FOR NO KEY UPDATE OF j SKIP LOCKED) n;
        EXIT WHEN numbers IS NULL;
        run := coalesce((SELECT min(s.n) - 1 FROM unnest(states) WITH ORDINALITY s(state, n)
                         WHERE s.state <> 'succeeded'), cardinality(states));
        IF run > 0 THEN
            looked := holdfast.meet_edges(parents[1:run], most - done, at);
            DELETE FROM holdfast.propagating p WHERE p.number = ANY (numbers[1:run])
                AND NOT EXISTS (SELECT FROM holdfast.edges e WHERE e.parent = p.parent AND e.status < 2);
            last := numbers[run];
            done := done + greatest(run, looked);
            size := greatest(1, most - done);
        ELSE
            looked := holdfast.change_edges(parents[1], states[1], most - done, at);
            IF looked < most - done THEN DELETE FROM holdfast.propagating WHERE number = numbers[1]; END IF;
            last := numbers[1];
            done := done + greatest(1, looked);
            size := 1;
        END IF;
    END LOOP;
    RETURN done;
END $$

-- :: function_meet_edges
-- Of parents that have succeeded: their edges are met, whatever the policy. Returns how many were looked at.
CREATE OR REPLACE FUNCTION holdfast.meet_edges(parents text[], most integer, at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    number integer;
    decided text[];
    one text;
BEGIN
    WITH line AS MATERIALIZED (
        SELECT n.n, n.parent, e.child, e.status AS before FROM unnest(parents) WITH ORDINALITY n(parent, n)
        CROSS JOIN LATERAL (SELECT o.child, o.status FROM holdfast.edges o WHERE o.parent = n.parent AND o.status < 2
                            ORDER BY o.status, o.child LIMIT most) e LIMIT most
    ), changed AS (
        UPDATE holdfast.edges e SET status = 2 FROM line l WHERE e.parent = l.parent AND e.child = l.child
    ), counted AS (
        UPDATE holdfast.dependents d SET pending = d.pending - c.met, failed = d.failed - c.mended
        FROM (SELECT l.child, count(*) AS met, count(*) FILTER (WHERE l.before = 1) AS mended, max(l.n) AS n
              FROM line l GROUP BY l.child) c
        WHERE d.child = c.child RETURNING d.child, d.pending, c.mended, c.n)
    SELECT (SELECT count(*) FROM line),
           array_agg(c.child ORDER BY c.n, c.child) FILTER (WHERE c.pending = 0 OR c.mended > 0)
    INTO number, decided FROM counted c;
    FOREACH one IN ARRAY coalesce(decided, '{}') LOOP PERFORM holdfast.resolve(one, at); END LOOP;
    RETURN number;
END $$

-- :: function_change_edges
-- Of one parent: failed edges unless it is dead or cancelled, open ones unless it is live.
CREATE OR REPLACE FUNCTION holdfast.change_edges(its_parent text, its_state text, most integer, at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    number integer;
    decided text[];
    one text;
BEGIN
    WITH line AS MATERIALIZED (
        SELECT e.child, e.status AS before, @edge_status(its_state, d.policy) AS after
        FROM holdfast.edges e JOIN holdfast.dependents d ON d.child = e.child
        WHERE e.parent = its_parent AND e.status < 2 AND CASE WHEN its_state = 'succeeded' THEN true
              WHEN its_state IN ('dead', 'cancelled') THEN e.status = 0 ELSE e.status = 1 END
        ORDER BY e.status, e.child LIMIT most
    ), changed AS (
        UPDATE holdfast.edges e SET status = l.after FROM line l WHERE e.parent = its_parent AND e.child = l.child
    ), counted AS (
        UPDATE holdfast.dependents d
        SET pending = d.pending - (l.after = 2)::integer,
            failed = d.failed + (l.after = 1)::integer - (l.before = 1)::integer
        FROM line l WHERE d.child = l.child RETURNING d.child, d.pending, d.failed)
    SELECT count(*), array_agg(c.child ORDER BY l.before, c.child)
                     FILTER (WHERE c.failed > 0 OR c.pending = 0 OR l.before = 1)
    INTO number, decided FROM counted c JOIN line l ON l.child = c.child;
    FOREACH one IN ARRAY coalesce(decided, '{}') LOOP PERFORM holdfast.resolve(one, at); END LOOP;
    RETURN number;
END $$

-- :: function_resolve
-- Let a job be what its edges say: it waits, is due, is dead or cancelled with reason "parent", or comes back. One that
-- somebody brought into play, ended or rescheduled meanwhile is left alone.
CREATE OR REPLACE FUNCTION holdfast.resolve(named text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    d holdfast.dependents;
    j holdfast.jobs;
    due double precision;
BEGIN
    SELECT * INTO d FROM holdfast.dependents WHERE child = named;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    IF j.state IN ('dead', 'cancelled') AND j.reason IS NOT DISTINCT FROM 'parent' AND d.failed = 0 THEN
        PERFORM holdfast.come_back(j, at);
        SELECT * INTO j FROM holdfast.jobs WHERE seq = j.seq;
    END IF;
    IF j.state IS DISTINCT FROM 'scheduled' OR j.due_at <> @DUE_AFTER_PARENTS THEN RETURN; END IF;
    IF d.failed > 0 AND d.policy = 'cancel' THEN
        PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, 'parent', 86400, at), holdfast.count_ended(j, 'cancelled', at);
    ELSIF d.failed > 0 THEN
        PERFORM holdfast.kill(j, 'parent', format('text:parent', (
            SELECT e.parent FROM holdfast.edges e WHERE e.child = named AND e.status = 1 ORDER BY e.parent LIMIT 1)), at),
            holdfast.count_ended(j, 'dead', at);
    ELSIF d.pending = 0 THEN
        due := CASE WHEN d.due_at IS NULL THEN at + coalesce(d.delay, 0) ELSE greatest(at, d.due_at) END;
        UPDATE holdfast.jobs SET due_at = due, expires_at = due + (j.expires_at - @DUE_AFTER_PARENTS) WHERE seq = j.seq;
    END IF;
END $$

-- :: function_rejoin
-- A dead or cancelled job is decided by its parents again. What is counted of its edges is locked first, as by propagate.
CREATE OR REPLACE FUNCTION holdfast.rejoin(named text, who text, given double precision) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    waits integer := (SELECT d.pending FROM holdfast.dependents d WHERE d.child = named FOR UPDATE);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state NOT IN ('dead', 'cancelled') OR coalesce(waits, 0) = 0 OR j.reason IN ('superseded', 'discarded') THEN
        PERFORM holdfast.refuse_state(j, 'rejoin');
    END IF;
    UPDATE holdfast.jobs SET reason = 'parent', marks = @with_mark('retry') WHERE seq = j.seq;
    PERFORM holdfast.resolve(named, at);
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_come_back
-- A job that ended because of a parent waits again, with fresh budgets and its key. False if its key is held.
CREATE OR REPLACE FUNCTION holdfast.come_back(j holdfast.jobs, at double precision) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '20ms' AS $$
BEGIN
    IF j.key IS NOT NULL AND NOT j.holds_key THEN
        IF holdfast.twin(j, at) IS NOT NULL THEN RETURN false; END IF;
        PERFORM holdfast.take_key(j, at);
    END IF;
    UPDATE holdfast.jobs
    SET state = 'scheduled', due_at = @DUE_AFTER_PARENTS, turn = NULL, marks = holdfast.with_mark(
            marks, 'revive', '{"text": "parent"}', at), @fresh
    WHERE seq = j.seq;
    DELETE FROM holdfast.retained WHERE seq = j.seq;
    IF j.state = 'dead' THEN UPDATE holdfast.letters SET revived_at = at, revive_at = NULL WHERE job_id = j.id; END IF;
    PERFORM holdfast.note_ended(ARRAY[j.seq]);
    RETURN true;
EXCEPTION WHEN unique_violation OR lock_not_available THEN RETURN false;  -- another job is taking its key
END $$

-- :: function_places_released
-- The groups of jobs that wait for those whose leases end: what becomes due is then promoted in the same call.
CREATE OR REPLACE FUNCTION holdfast.places_released(ending bigint[], stalled text[], most integer)
RETURNS holdfast.place[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT array_agg(DISTINCT ROW(r.queue, r.grp)::holdfast.place) FROM (
        SELECT DISTINCT l.child FROM (
            SELECT e.child FROM (
                SELECT p.id FROM unnest(ending) n(seq) JOIN holdfast.jobs p ON p.seq = n.seq
                UNION ALL
                SELECT p.id FROM holdfast.jobs p WHERE p.state = 'running' AND p.worker = ANY (stalled)) p
            JOIN holdfast.edges e ON e.parent = p.id AND e.status < 2 LIMIT most) l) d
    JOIN holdfast.ids i ON i.id = d.child JOIN holdfast.jobs r ON r.seq = i.seq
    WHERE r.grp IS NOT NULL);
END $$

-- :: function_released_by
-- The queues of jobs that waited for these.
CREATE OR REPLACE FUNCTION holdfast.released_by(ended bigint[]) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT c.queue FROM (
        SELECT DISTINCT e.child FROM unnest(ended) n(seq) JOIN holdfast.jobs p ON p.seq = n.seq
        JOIN holdfast.edges e ON e.parent = p.id AND e.status = 2 LIMIT 1000) r
        JOIN holdfast.ids i ON i.id = r.child JOIN holdfast.jobs c ON c.seq = i.seq
        WHERE c.state IN ('scheduled', 'waiting', 'ready') AND c.due_at < @DUE_AFTER_PARENTS);
END $$
