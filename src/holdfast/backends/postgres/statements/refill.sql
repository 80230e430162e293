-- refill: make as many waiting jobs of a group ready as it has room for. THE ONE routine that does so.
-- What is in play is read off the jobs' own states: no counter exists that could drift. Safe against rivals: a group is
-- locked first, then looked at in a later statement with a snapshot of its own (READ COMMITTED). Groups are locked by
-- advisory transaction locks on 1024 stripes, in order: no row per group to write, vacuum or prune, and never more than
-- 1024 entries of the server's lock table in use. Lock order everywhere: rules, keys, groups, jobs, letters.

-- :: call
SELECT holdfast.refill(%(queue)s, %(grp)s, %(limit)s, %(now)s)::text

-- :: function_lock_groups
CREATE OR REPLACE FUNCTION holdfast.lock_groups(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.groups'), s.stripe)
    FROM (SELECT DISTINCT hashtext(p.queue || '/' || p.grp) & 1023 AS stripe FROM unnest(places) p ORDER BY 1) s;
END $$

-- :: function_limits
CREATE OR REPLACE FUNCTION holdfast.limits(places holdfast.place[])
RETURNS TABLE (queue text, grp text, most integer) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT p.queue, p.grp,
           CASE WHEN z.kind IS NOT NULL THEN 0
                WHEN q.group_order = 'relaxed' THEN coalesce(o.group_limit, q.group_limit)
                ELSE 1 END
    FROM unnest(places) p
    LEFT JOIN holdfast.queues q ON q.name = p.queue
    LEFT JOIN holdfast.groups o ON o.queue = p.queue AND o.name = p.grp
    LEFT JOIN holdfast.pauses z ON z.kind = 'group' AND z.queue = p.queue AND z.name = p.grp
$$

-- :: function_refill_groups
CREATE OR REPLACE FUNCTION holdfast.refill_groups(places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE made integer;
BEGIN
    IF coalesce(cardinality(places), 0) = 0 THEN RETURN 0; END IF;
    -- Who is due but not yet promoted must not be overtaken by a later one of its group.
    IF EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at) THEN
        WITH joining AS MATERIALIZED (
            SELECT j.seq FROM holdfast.limits(places) g
            JOIN holdfast.jobs j ON j.state = 'scheduled' AND j.queue = g.queue AND j.grp = g.grp
                                AND j.due_at <= at AND NOT j.held
            WHERE EXISTS (SELECT 1 FROM holdfast.jobs w
                          WHERE w.state = 'waiting' AND w.queue = g.queue AND w.grp = g.grp)
              AND g.most > (SELECT count(*) FROM holdfast.jobs p WHERE p.queue = g.queue AND p.grp = g.grp
                            AND (p.state IN ('ready', 'running') OR (p.state = 'scheduled' AND p.held)))
            FOR UPDATE OF j SKIP LOCKED)
        UPDATE holdfast.jobs j SET state = 'waiting', turn = NULL FROM joining WHERE j.seq = joining.seq;
    END IF;
    -- A row that a stranger locked is passed over, not its successor taken: its group is refilled by the next sweep.
    WITH chosen AS MATERIALIZED (
        SELECT w.seq, row_number() OVER (ORDER BY w.held DESC, w.priority DESC, w.seq) AS place
        FROM holdfast.limits(places) g CROSS JOIN LATERAL (
            SELECT c.seq, c.held, c.priority FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = g.queue AND c.grp = g.grp
            ORDER BY c.held DESC, c.priority DESC, c.seq
            LIMIT greatest(0, g.most - (
                SELECT count(*) FROM holdfast.jobs p WHERE p.queue = g.queue AND p.grp = g.grp AND p.grp IS NOT NULL
                AND (p.state IN ('ready', 'running') OR (p.state = 'scheduled' AND p.held))))) w
        WHERE g.most > 0
    ), locked AS MATERIALIZED (
        SELECT j.seq, chosen.place FROM chosen JOIN holdfast.jobs j ON j.seq = chosen.seq
        WHERE j.state = 'waiting' FOR UPDATE OF j SKIP LOCKED
    ), numbered AS MATERIALIZED (  -- by place: a join may hand rows on in any order
        SELECT o.seq, nextval('holdfast.ticks') AS turn FROM (SELECT seq FROM locked ORDER BY place) o
    )
    UPDATE holdfast.jobs j
    SET state = 'ready', turn = coalesce(j.turn, n.turn),
        lane = CASE WHEN EXISTS (SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'task' AND p.queue = ''
                                 AND p.name = j.task) THEN 2 ELSE 1 END
    FROM numbered n WHERE j.seq = n.seq;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$

-- :: function_withdraw
CREATE OR REPLACE FUNCTION holdfast.withdraw(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- the caller holds the rules alone, so nobody else moves a grouped job meanwhile
    WITH beyond AS MATERIALIZED (
        SELECT w.seq FROM holdfast.limits(places) g CROSS JOIN LATERAL (
            SELECT r.seq FROM holdfast.jobs r
            WHERE r.queue = g.queue AND r.grp = g.grp AND r.state = 'ready'
            ORDER BY r.held, r.priority, r.seq DESC
            LIMIT greatest(0, (SELECT count(*) FROM holdfast.jobs p WHERE p.queue = g.queue AND p.grp = g.grp
                  AND (p.state IN ('ready', 'running') OR (p.state = 'scheduled' AND p.held))) - g.most)) w)
    UPDATE holdfast.jobs j SET state = 'waiting' FROM beyond WHERE j.seq = beyond.seq;
END $$

-- :: function_refill
CREATE OR REPLACE FUNCTION holdfast.refill(after_queue text, after_grp text, most integer, given double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    places holdfast.place[];
    made integer;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    SELECT array_agg(ROW(w.queue, w.grp)::holdfast.place ORDER BY w.queue, w.grp) INTO places
    FROM (SELECT DISTINCT queue, grp FROM holdfast.jobs WHERE state = 'waiting'
          AND (queue, grp) > (after_queue, after_grp) ORDER BY queue, grp LIMIT most) w;
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    made := holdfast.refill_groups(places, at);
    IF coalesce(cardinality(places), 0) < most THEN RETURN jsonb_build_array(made, '', ''); END IF;
    RETURN jsonb_build_array(made, places[most].queue, places[most].grp);
END $$
