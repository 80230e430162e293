-- swap: for each job of a group that just ended, one of the group's waiting jobs becomes ready. Done by exchanges instead
-- of a refill where groups may run several jobs at once, so that workers that share a busy group do not wait for each
-- other's commits.
-- Takes the successes of a call, their answers, and groups. Safe against a rival: the groups' locks are held shared, so
-- nobody who holds one alone (refill.sql) adds to a group meanwhile, and whoever shares it puts no more in play than it
-- took out, of room that it sees itself: together they never exceed a limit. Waiting rows are locked with SKIP LOCKED: a
-- rival that shares the group takes the next one, which no order forbids where several run at once.

-- :: function_may_swap
-- Whether all of these groups may have more than one job in play.
CREATE OR REPLACE FUNCTION holdfast.may_swap(places holdfast.place[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues WHERE group_order = 'relaxed') THEN RETURN false; END IF;
    RETURN NOT EXISTS (SELECT FROM holdfast.limits(places) g WHERE g.most < 2);
END $$

-- :: function_share_groups
-- Who shares a group asks for no lock of it alone in the same transaction: two of them would wait for each other.
CREATE OR REPLACE FUNCTION holdfast.share_groups(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('holdfast.groups'), s.stripe)
    FROM (SELECT DISTINCT hashtext(p.queue || '/' || p.grp) & 1023 AS stripe FROM unnest(places) p ORDER BY 1) s;
END $$

-- :: function_swap
-- What ended is counted by the answers: a settlement that came too late ended nothing.
CREATE OR REPLACE FUNCTION holdfast.swap(successes jsonb, answers text[], places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended holdfast.place[] := ARRAY(
        SELECT ROW(j.queue, j.grp)::holdfast.place
        FROM jsonb_array_elements_text(successes -> 'token') WITH ORDINALITY t(token, n)
        JOIN holdfast.jobs j ON j.seq = split_part(t.token, '.', 1)::bigint
        WHERE answers[t.n] = 'ok' AND j.grp IS NOT NULL);
BEGIN
    PERFORM holdfast.join_due(places, at);
    PERFORM holdfast.make_swapped_ready(places, ended, at);
END $$

-- :: function_make_swapped_ready
-- As make_ready in refill.sql, which numbers them in the same way, but no more of a group than of it ended.
CREATE OR REPLACE FUNCTION holdfast.make_swapped_ready(places holdfast.place[], ended holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE base bigint := (SELECT last_value FROM holdfast.ticks);
BEGIN
    WITH swaps AS MATERIALIZED (
        SELECT e.queue, e.grp, count(*) AS number FROM unnest(ended) e GROUP BY e.queue, e.grp
    ), locked AS MATERIALIZED (
        SELECT w.seq, w.turn, g.queue, g.grp, g.ready, g.last, g.aging,
               coalesce(floor(w.priority * g.aging * 1000000)::bigint, 0) AS shift,
               row_number() OVER (ORDER BY w.held DESC, w.priority DESC, w.seq) AS place
        FROM holdfast.group_rooms(places, at) g JOIN swaps s ON s.queue = g.queue AND s.grp = g.grp CROSS JOIN LATERAL (
            SELECT c.seq, c.held, c.priority, c.turn FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = g.queue AND c.grp = g.grp ORDER BY c.held DESC, c.priority DESC, c.seq
            LIMIT greatest(0, least(g.room, 256 - g.ready, s.number)) FOR UPDATE SKIP LOCKED) w
    ), behind AS (
        SELECT l.*, coalesce(l.turn - base, 2592000000000 * (l.ready - 1 + row_number() OVER (
                   PARTITION BY l.queue, l.grp ORDER BY l.place)) - l.shift) AS ticks
        FROM locked l
    ), above AS (
        SELECT b.seq, b.turn, b.aging, b.place,
               greatest(max(b.ticks) OVER (PARTITION BY b.queue, b.grp ORDER BY b.place), b.last - base) AS ticks
        FROM behind b
    ), numbered AS MATERIALIZED (
        SELECT o.seq, o.aging, coalesce(o.turn, nextval('holdfast.ticks') + o.ticks) AS turn
        FROM (SELECT * FROM above ORDER BY place) o
    )
    UPDATE holdfast.jobs j
    SET state = 'ready', turn = n.turn, rank = CASE WHEN n.aging IS NULL THEN j.priority ELSE 0 END,
        lane = CASE WHEN j.task = ANY (ARRAY(SELECT p.name FROM holdfast.pauses p WHERE p.kind = 'task')) THEN 2
                    ELSE coalesce((SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = j.task), 1) END
    FROM numbered n WHERE j.seq = n.seq;
END $$
