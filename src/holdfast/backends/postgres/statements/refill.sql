-- refill: make as many waiting jobs of a group ready as it has room for. THE ONE routine that does so.
-- What is in play is read off the jobs' own states: no counter exists that could drift. Safe against rivals: a group is
-- locked first, then looked at in a later statement with a snapshot of its own (READ COMMITTED). Groups are locked by
-- advisory transaction locks on 1024 stripes, in order: no row per group to write, vacuum or prune, and never more than
-- 1024 entries of the server's lock table in use. Lock order everywhere: rules, promote,
-- entries, flows, keys, groups, jobs, letters.

-- :: call
SELECT holdfast.refill(%(queue)s, %(grp)s, %(limit)s, %(now)s)::text

-- :: function_lock_groups
CREATE OR REPLACE FUNCTION holdfast.lock_groups(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.groups'), s.stripe)
    FROM (SELECT DISTINCT hashtext(p.queue || '/' || p.grp) & 1023 AS stripe FROM unnest(places) p ORDER BY 1) s;
END $$

-- :: function_try_group
CREATE OR REPLACE FUNCTION holdfast.try_group(queue text, grp text) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(hashtext('holdfast.groups'), hashtext(queue || '/' || grp) & 1023)
$$

-- :: function_refill_groups
CREATE OR REPLACE FUNCTION holdfast.refill_groups(places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    rated boolean;
    made integer;
BEGIN
    IF coalesce(cardinality(places), 0) = 0 THEN RETURN 0; END IF;
    rated := EXISTS (SELECT 1 FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.rated);
    IF rated THEN PERFORM holdfast.set_groups_back(places, at), holdfast.withdraw(places, at); END IF;
    PERFORM holdfast.join_due(places, at);
    made := holdfast.make_ready(places, at);
    IF rated THEN PERFORM holdfast.wake(places, at); END IF;
    RETURN made;
END $$

-- :: function_join_due
-- Who is due but not yet promoted must not be overtaken by a later one of its group.
CREATE OR REPLACE FUNCTION holdfast.join_due(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at) THEN
        WITH joining AS MATERIALIZED (
            SELECT j.seq FROM holdfast.group_rooms(places, at) g CROSS JOIN LATERAL (  -- no more of them than may go on
                SELECT d.seq FROM holdfast.jobs d WHERE d.state = 'scheduled' AND d.queue = g.queue AND d.grp = g.grp
                AND d.grp IS NOT NULL AND d.due_at <= at AND NOT d.held
                ORDER BY d.priority DESC, d.seq LIMIT greatest(0, least(g.room, 256))) c
            JOIN holdfast.jobs j ON j.seq = c.seq
            WHERE EXISTS (SELECT 1 FROM holdfast.jobs w
                          WHERE w.state = 'waiting' AND w.queue = g.queue AND w.grp = g.grp)
              AND CASE j.state WHEN 'scheduled' THEN true END
            FOR UPDATE OF j SKIP LOCKED)
        UPDATE holdfast.jobs j SET state = 'waiting', turn = NULL FROM joining WHERE j.seq = joining.seq;
    END IF;
END $$

-- :: function_make_ready
-- A job that joins k others of its group gets a turn k * 30 days (STAGGER_TICKS) behind its number, but above all of
-- theirs, kept ones too: so groups take turns. `base` is below every number issued here.
-- A row that a stranger locked is passed over, not its successor taken: its group is refilled by the next sweep.
CREATE OR REPLACE FUNCTION holdfast.make_ready(places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    base bigint := (SELECT last_value FROM holdfast.ticks);
    made integer;
BEGIN
    WITH chosen AS MATERIALIZED (
        SELECT w.seq, w.turn, g.queue, g.grp, g.ready, g.last, g.aging,
               coalesce(floor(w.priority * g.aging * 1000000)::bigint, 0) AS shift,
               row_number() OVER (ORDER BY w.held DESC, w.priority DESC, w.seq) AS place
        FROM holdfast.group_rooms(places, at) g CROSS JOIN LATERAL (
            SELECT c.seq, c.held, c.priority, c.turn FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = g.queue AND c.grp = g.grp
            ORDER BY c.held DESC, c.priority DESC, c.seq LIMIT greatest(0, least(g.room, 256 - g.ready))) w
    ), locked AS MATERIALIZED (  -- said so that only the key can find the row: planned on an empty store, kept for long
        SELECT chosen.* FROM chosen JOIN holdfast.jobs j ON j.seq = chosen.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), behind AS (
        SELECT l.*, coalesce(l.turn - base, 2592000000000 * (l.ready - 1 + row_number() OVER (
                   PARTITION BY l.queue, l.grp ORDER BY l.place)) - l.shift) AS ticks
        FROM locked l
    ), above AS (
        SELECT b.seq, b.turn, b.aging, b.place,
               greatest(max(b.ticks) OVER (PARTITION BY b.queue, b.grp ORDER BY b.place), b.last - base) AS ticks
        FROM behind b
    ), numbered AS MATERIALIZED (  -- by place: a join may hand rows on in any order
        SELECT o.seq, o.aging, coalesce(o.turn, nextval('holdfast.ticks') + o.ticks) AS turn
        FROM (SELECT * FROM above ORDER BY place) o
    )
    UPDATE holdfast.jobs j
    SET state = 'ready', turn = n.turn, rank = CASE WHEN n.aging IS NULL THEN j.priority ELSE 0 END,
        lane = CASE WHEN j.task = ANY (ARRAY(SELECT p.name FROM holdfast.pauses p WHERE p.kind = 'task')) THEN 2
                    ELSE coalesce((SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = j.task), 1) END
    FROM numbered n WHERE j.seq = n.seq;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$

-- :: function_groups_waiting
-- The groups that have waiting jobs, behind this one: from one to the next by the index, however many jobs each has.
CREATE OR REPLACE FUNCTION holdfast.groups_waiting(after_queue text, after_grp text, most integer)
RETURNS holdfast.place[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE g(place, n) AS (
        SELECT ROW(after_queue, after_grp)::holdfast.place, 0
        UNION ALL
        SELECT (SELECT ROW(j.queue, j.grp)::holdfast.place FROM holdfast.jobs j
                WHERE j.state = 'waiting' AND (j.queue, j.grp) > ((g.place).queue, (g.place).grp)
                ORDER BY j.queue, j.grp LIMIT 1), g.n + 1
        FROM g WHERE (g.place).grp IS NOT NULL AND g.n < most)
    SELECT array_agg(g.place ORDER BY g.n) FROM g WHERE g.n > 0 AND (g.place).grp IS NOT NULL
$$

-- :: function_places_lacking
-- Those that seem to have room, looked at without their locks: a busy group is mostly full in every snapshot, and a sweep
-- that waited for its lock would hold up the workers that keep it so. Where groups have rates, all of them.
CREATE OR REPLACE FUNCTION holdfast.places_lacking(places holdfast.place[], at double precision)
RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.rated) THEN RETURN places; END IF;
    RETURN ARRAY(SELECT ROW(g.queue, g.grp)::holdfast.place FROM holdfast.group_rooms(places, at) g
                 WHERE g.room > 0 AND g.ready < 256);
END $$

-- :: function_refill
CREATE OR REPLACE FUNCTION holdfast.refill(after_queue text, after_grp text, most integer, given double precision)
RETURNS jsonb LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    places holdfast.place[];
    lacking holdfast.place[];
    made integer;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    places := holdfast.groups_waiting(after_queue, after_grp, most);
    lacking := holdfast.places_lacking(places, at);
    PERFORM holdfast.lock_groups(lacking), holdfast.keep_up(at);
    made := holdfast.refill_groups(lacking, at);
    IF coalesce(cardinality(places), 0) < most THEN RETURN jsonb_build_array(made, '', ''); END IF;
    RETURN jsonb_build_array(made, places[most].queue, places[most].grp);
END $$
