-- orders: the jobs of a group by their caller's own values (R103 to R105), and groups by their weight (R106).

-- == make_way: before a group is refilled, let jobs with lower orders go before those that have not started. Runs only
-- while there are unstarted jobs with an order, and looks only at groups that have some.
-- Concurrency: the caller holds the groups' locks. A ready job that a claim is taking at this moment is no longer ready
-- once its row lock is released: then it stays as it is.

-- :: fragment may_precede(o)
-- Whether a job may go before others of its group: it has an order, and waits in its group or for lower orders.
@o.ordinal IS NOT NULL AND (@o.state = 'waiting' OR (@o.state = 'scheduled' AND NOT @o.held AND @o.fence = 0))

-- :: fragment precedes(one, two)
-- Whether a job with an order comes before another of its group; one without an order comes before those with one.
(@one.priority > @two.priority OR @one.priority = @two.priority AND (@one.ordinal, @one.seq) < (@two.ordinal, @two.seq))

-- :: function_make_way
CREATE OR REPLACE FUNCTION holdfast.make_way(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE g record;
BEGIN
    FOR g IN
        SELECT l.queue, l.grp, l.most, q.order_window, p.in_play, p.ready
        FROM holdfast.limits(ARRAY(
            SELECT n FROM unnest(places) n WHERE EXISTS (
                SELECT FROM holdfast.jobs o WHERE o.queue = n.queue AND o.grp = n.grp AND @may_precede(o)))) l
        LEFT JOIN holdfast.queues q ON q.name = l.queue
        CROSS JOIN LATERAL (
            SELECT count(*) AS in_play, count(*) FILTER (WHERE j.state = 'ready') AS ready
            FROM holdfast.jobs j WHERE j.queue = l.queue AND j.grp = l.grp AND @in_play(j)) p
        WHERE l.most > 0
    LOOP
        IF g.order_window IS NOT NULL AND (g.most > g.in_play OR g.ready > 0) THEN
            PERFORM holdfast.join_staged(g.queue, g.grp, at + g.order_window);
        END IF;
        IF g.most = 1 AND g.ready > 0 THEN PERFORM holdfast.give_way(g.queue, g.grp); END IF;
    END LOOP;
END $$

-- :: function_join_staged
-- Jobs that wait for lower orders go before one of their group that no longer does and has not started (R104).
CREATE OR REPLACE FUNCTION holdfast.join_staged(queued text, named text, until double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH staged AS MATERIALIZED (
        SELECT o.seq, o.priority, o.ordinal, o.due_at FROM holdfast.jobs o
        WHERE o.queue = queued AND o.grp = named AND o.state = 'scheduled' AND @may_precede(o)
        ORDER BY o.priority DESC, o.ordinal, o.seq LIMIT @STAGED_LOOKS_MAX
    ), unstarted AS MATERIALIZED (
        SELECT * FROM (
            SELECT w.priority, w.ordinal, w.seq FROM holdfast.jobs w
            WHERE w.state = 'waiting' AND w.queue = queued AND w.grp = named AND NOT w.held
            ORDER BY w.priority, w.ordinal DESC NULLS LAST, w.seq DESC LIMIT 1) last
        UNION ALL
        SELECT r.priority, r.ordinal, r.seq FROM holdfast.jobs r
        WHERE r.queue = queued AND r.grp = named AND @in_play(r) AND r.state = 'ready' AND NOT r.held
    ), joining AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT j.seq FROM staged s JOIN holdfast.jobs j ON j.seq = s.seq
        WHERE s.due_at <= until AND EXISTS (SELECT FROM unstarted u WHERE @precedes(s, u))
          AND CASE j.state WHEN 'scheduled' THEN true END
        FOR UPDATE OF j SKIP LOCKED)
    UPDATE holdfast.jobs j SET state = 'waiting', turn = NULL FROM joining WHERE j.seq = joining.seq;
END $$

-- :: function_give_way
-- A ready job with an order goes back to waiting, with its turn, if a lower one waits in its group (R105).
CREATE OR REPLACE FUNCTION holdfast.give_way(queued text, named text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE later bigint;
BEGIN
    SELECT r.seq INTO later FROM (
        SELECT w.priority, w.ordinal, w.seq FROM holdfast.jobs w
        WHERE w.state = 'waiting' AND w.queue = queued AND w.grp = named ORDER BY @group_order(w) LIMIT 1) first
    JOIN holdfast.jobs r ON r.queue = queued AND r.grp = named AND @in_play(r) AND r.state = 'ready' AND NOT r.held
    WHERE first.ordinal IS NOT NULL AND r.ordinal IS NOT NULL AND @precedes(first, r) LIMIT 1;
    UPDATE holdfast.jobs SET state = 'waiting' WHERE seq = later AND state = 'ready';
END $$

-- == weighted: the turn of a job of a group with a weight: formulas.ahead, formulas.weighted.
-- Concurrency: it reads the lane as it was when the statement began; concurrent calls may shift it by a place.

-- :: fragment in_line(r)
-- The ready jobs of the queue's groups with this rank.
@r.state = 'ready' AND @r.queue = queued AND @r.lane = 1 AND @r.rank = its_rank

-- :: function_weighted
CREATE OR REPLACE FUNCTION holdfast.weighted(queued text, its_rank integer, its_turn bigint, weight integer)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    line integer := (SELECT count(*) FROM (
        SELECT FROM holdfast.jobs r WHERE @in_line(r) LIMIT @WEIGHED_LINE_MAX + 1) l);
    ahead integer := CASE WHEN line > @WEIGHED_LINE_MAX THEN 1 ELSE greatest(1, line / weight) END;
    turns bigint[];
BEGIN
    IF line <= ahead THEN RETURN its_turn; END IF;
    turns := ARRAY(SELECT r.turn FROM holdfast.jobs r WHERE @in_line(r) ORDER BY r.turn LIMIT 2 OFFSET ahead - 1);
    RETURN least(its_turn, turns[1] + CASE WHEN line > @WEIGHED_LINE_MAX THEN (its_turn - turns[1]) / weight
                                           ELSE (turns[2] - turns[1]) / 2 END);
END $$
