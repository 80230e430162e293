-- groups: which jobs of a group are ready, and how many may be.

-- == refill: make as many waiting jobs of a group ready as it has room for. The general path; `swap` below and follow.sql
-- are its fast paths. A group's occupancy is counted from its jobs' states: there is no counter to drift.
-- Concurrency: a group is locked first, then read in a later statement with its own snapshot (READ COMMITTED). Groups
-- are locked by advisory transaction locks on 1024 stripes, in order: no row per group to write, vacuum or prune, and
-- never more than 1024 entries in the server's lock table.
-- Lock order everywhere: rules, promote, entries, a worker's row and its calls, flows, keys, groups, jobs, letters, rows
-- of flows. Of two jobs, the one that is settled comes before the dead one that has its dead letter (lock_holder in
-- letters.sql). Sweeps skip what is locked; promote, which locks a letter before its job, waits 20 ms at most.

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
    IF EXISTS (SELECT FROM holdfast.jobs o WHERE @may_precede(o)) THEN PERFORM holdfast.make_way(places, at); END IF;
    made := holdfast.make_ready(places, at);
    IF rated THEN PERFORM holdfast.wake(places, at); END IF;
    RETURN made;
END $$

-- :: function_join_due
-- A job that is due but not promoted yet must not be overtaken by a later one of its group.
CREATE OR REPLACE FUNCTION holdfast.join_due(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at) THEN
        WITH joining AS MATERIALIZED (
            SELECT j.seq FROM holdfast.group_rooms(places, at) g CROSS JOIN LATERAL (  -- the rest follows by promote
                SELECT d.seq FROM holdfast.jobs d WHERE d.state = 'scheduled' AND d.queue = g.queue AND d.grp = g.grp
                AND d.grp IS NOT NULL AND d.due_at <= at AND NOT d.held
                ORDER BY d.priority DESC, d.ordinal NULLS FIRST, d.seq LIMIT CASE WHEN g.room > 0 THEN @READY_PER_GROUP_MAX ELSE 0 END) c
            JOIN holdfast.jobs j ON j.seq = c.seq
            WHERE EXISTS (SELECT 1 FROM holdfast.jobs w
                          WHERE w.state = 'waiting' AND w.queue = g.queue AND w.grp = g.grp)
              AND CASE j.state WHEN 'scheduled' THEN true END
            FOR UPDATE OF j SKIP LOCKED)
        UPDATE holdfast.jobs j SET state = 'waiting', turn = NULL FROM joining WHERE j.seq = joining.seq;
    END IF;
END $$

-- :: fragment in_play(j)
-- Whether a job occupies a slot of its group.
@j.grp IS NOT NULL AND (@j.state IN ('ready', 'running') OR (@j.state IN ('scheduled', 'dead') AND @j.held))

-- :: fragment group_order(j)
-- The order in which the waiting jobs of a group become ready.
@j.held DESC, @j.priority DESC, @j.ordinal NULLS FIRST, @j.seq

-- :: fragment next_of_group
-- What is needed of a waiting job w of the group g to make it ready.
w.seq, w.turn, g.queue, g.grp, g.ready, g.last, g.aging, g.weight, @rank(w.priority, g.aging) AS rank,
@age_shift(w.priority, g.aging) AS shift,
row_number() OVER (ORDER BY @group_order(w)) AS place

-- :: fragment make_locked_ready
-- A job that joins k ready jobs of its group gets a turn k * 30 days (STAGGER_TICKS) after its tick, and always after
-- their turns, including turns they kept from before: so groups alternate. `base` is below every tick issued here.
-- Turns are given by place, in a sorted sub-query: a join may return rows in any order.
behind AS (
    SELECT l.*, coalesce(l.turn - base, @STAGGER_TICKS * (l.ready - 1 + row_number() OVER (
               PARTITION BY l.queue, l.grp ORDER BY l.place)) - l.shift) AS ticks
    FROM locked l
), above AS (
    SELECT b.seq, b.turn, b.aging, b.place, b.queue, b.rank, CASE WHEN b.ready = 0 AND b.turn IS NULL
               AND row_number() OVER (PARTITION BY b.queue, b.grp ORDER BY b.place) = 1 THEN b.weight ELSE 1 END AS weight,
           greatest(max(b.ticks) OVER (PARTITION BY b.queue, b.grp ORDER BY b.place), b.last - base) AS ticks
    FROM behind b
), numbered AS MATERIALIZED (
    SELECT o.seq, o.aging, coalesce(o.turn, nextval('holdfast.ticks') + o.ticks) AS turn, o.queue, o.rank, o.weight
    FROM (SELECT * FROM above ORDER BY place) o
), weighted AS MATERIALIZED (  -- R106
    SELECT o.seq, o.aging, CASE WHEN o.weight = 1 THEN o.turn
                                ELSE holdfast.weighted(o.queue, o.rank, o.turn, o.weight) END AS turn
    FROM numbered o
)
UPDATE holdfast.jobs j
SET state = 'ready', turn = n.turn, rank = @rank(j.priority, n.aging), lane = @lane_in_bulk(j.task, j.grp)
FROM weighted n WHERE j.seq = n.seq

-- :: function_make_ready
-- A row that another session has locked is skipped; its successor is not taken instead, and the next sweep refills the
-- group. A group in which no job waits costs one look at an index: its limit and what it has in play are not read.
CREATE OR REPLACE FUNCTION holdfast.make_ready(places holdfast.place[], at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    base bigint;
    made integer;
    waiting holdfast.place[] := ARRAY(
        SELECT p FROM unnest(places) p CROSS JOIN LATERAL (
            SELECT FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = p.queue AND c.grp = p.grp
            ORDER BY @group_order(c) LIMIT 1) w);
BEGIN
    IF waiting = '{}' THEN RETURN 0; END IF;
    base := (SELECT last_value FROM holdfast.ticks);
    WITH chosen AS MATERIALIZED (
        SELECT @next_of_group
        FROM holdfast.group_rooms(waiting, at) g CROSS JOIN LATERAL (
            SELECT c.seq, c.held, c.priority, c.ordinal, c.turn FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = g.queue AND c.grp = g.grp
            ORDER BY @group_order(c) LIMIT greatest(0, least(g.room, @READY_PER_GROUP_MAX - g.ready))) w
    ), locked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT chosen.* FROM chosen JOIN holdfast.jobs j ON j.seq = chosen.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), @make_locked_ready;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$

-- :: function_groups_waiting
-- The next groups that have waiting jobs, after the given one; skips through the index, however many jobs each has.
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
-- The groups that seem to have room, read without their locks: a busy group is full in nearly every snapshot, and a
-- sweep that waited for its lock would block the workers that keep it busy. All groups, if any queue's groups have
-- rates.
CREATE OR REPLACE FUNCTION holdfast.places_lacking(places holdfast.place[], at double precision)
RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.rated) THEN RETURN places; END IF;
    RETURN ARRAY(SELECT ROW(g.queue, g.grp)::holdfast.place FROM holdfast.group_rooms(places, at) g
                 WHERE g.room > 0 AND g.ready < @READY_PER_GROUP_MAX);
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

-- == swap: for each job of a group that has just ended, make one of the group's waiting jobs ready. Exchanges use it
-- instead of a refill if groups may run several jobs at once, so that workers that share a busy group do not wait for
-- each other's commits. Takes the successes of a call, their answers, and groups.
-- Concurrency: the groups' locks are held in shared mode, so no exclusive holder adds to a group meanwhile, and each
-- sharer makes no more jobs ready than it ended, within the room it sees itself: together they never exceed a limit.
-- Waiting rows are locked with SKIP LOCKED: a rival that shares the group takes the next one, which is fine because
-- groups that run several jobs at once guarantee no order.

-- :: function_may_swap
-- Whether all of these groups may have more than one job ready or running.
CREATE OR REPLACE FUNCTION holdfast.may_swap(places holdfast.place[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues WHERE group_order = 'relaxed') THEN RETURN false; END IF;
    RETURN NOT EXISTS (SELECT FROM holdfast.limits(places) g WHERE g.most < 2)
        AND NOT EXISTS (SELECT FROM unnest(places) p JOIN holdfast.queues q ON q.name = p.queue
                        WHERE q.order_window IS NOT NULL);
END $$

-- :: function_share_groups
-- A transaction that shares a group must not request its exclusive lock later: two of them would deadlock.
CREATE OR REPLACE FUNCTION holdfast.share_groups(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('holdfast.groups'), s.stripe)
    FROM (SELECT DISTINCT hashtext(p.queue || '/' || p.grp) & 1023 AS stripe FROM unnest(places) p ORDER BY 1) s;
END $$

-- :: function_swap
-- Counts only jobs whose answer is ok: a settlement that came too late ended nothing.
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
-- Like make_ready, with the same turns, but makes no more jobs of a group ready than ended.
CREATE OR REPLACE FUNCTION holdfast.make_swapped_ready(places holdfast.place[], ended holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE base bigint := (SELECT last_value FROM holdfast.ticks);
BEGIN
    WITH swaps AS MATERIALIZED (
        SELECT e.queue, e.grp, count(*) AS number FROM unnest(ended) e GROUP BY e.queue, e.grp
    ), locked AS MATERIALIZED (
        SELECT @next_of_group
        FROM holdfast.group_rooms(places, at) g JOIN swaps s ON s.queue = g.queue AND s.grp = g.grp CROSS JOIN LATERAL (
            SELECT c.seq, c.held, c.priority, c.ordinal, c.turn FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = g.queue AND c.grp = g.grp ORDER BY @group_order(c)
            LIMIT greatest(0, least(g.room, @READY_PER_GROUP_MAX - g.ready, s.number)) FOR UPDATE SKIP LOCKED) w
    ), @make_locked_ready;
END $$

-- == room: how many jobs a group may have ready and running by its limit and its rate, how many it has, and how excess
-- ready jobs go back to waiting. Occupancy is counted from the jobs' states: there is no counter to drift.
-- Concurrency: the caller holds the group's lock, or the rules lock exclusively.

-- :: fragment is_relaxed(queue, grp)
-- Whether several jobs of a group may run at once: formulas.group_order. NULL without a rule of the queue: strict.
@queue.group_order = 'relaxed' AND NOT starts_with(@grp, @SERIAL_PREFIX)

-- :: function_is_strict
CREATE OR REPLACE FUNCTION holdfast.is_strict(queued text, grp text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT coalesce((SELECT @is_relaxed(q, grp) FROM holdfast.queues q WHERE q.name = queued), false)
$$

-- :: function_stops
-- Whether a job of this group that dies at the end of its lease stops the group (R95).
CREATE OR REPLACE FUNCTION holdfast.stops(queued text, named text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT named IS NOT NULL AND EXISTS (SELECT FROM holdfast.queues WHERE name = queued AND on_dead = 'stop')
        AND holdfast.is_strict(queued, named)
$$

-- :: function_go_on
-- A group is no longer stopped by a dead job: refill it, unless somebody else works on it, whose next refill or sweep
-- does. It does not wait for the group's lock, because the caller may have locked jobs already.
CREATE OR REPLACE FUNCTION holdfast.go_on(queued text, named text, at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.try_group(queued, named) THEN
        PERFORM holdfast.keep_up(at), holdfast.refill_groups(ARRAY[ROW(queued, named)::holdfast.place], at);
    END IF;
END $$

-- :: function_limits
CREATE OR REPLACE FUNCTION holdfast.limits(places holdfast.place[])
RETURNS TABLE (queue text, grp text, most integer, rate holdfast.rate, aging double precision, weight integer)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (p.queue, p.grp) p.queue, p.grp,
           CASE WHEN z.kind IS NOT NULL THEN 0
                WHEN @is_relaxed(q, p.grp)
                THEN coalesce(o.job_limit, q.group_limit)
                ELSE 1 END,
           CASE WHEN (coalesce(o.rate, q.group_rate)).count < 1000000000 THEN coalesce(o.rate, q.group_rate) END,
           CASE WHEN abs(q.aging) < 1000000000 THEN q.aging END,  -- NaN sorts above all numbers
           coalesce(o.weight, 1)
    FROM unnest(places) p
    LEFT JOIN holdfast.queues q ON q.name = p.queue
    LEFT JOIN holdfast.overrides o ON o.kind = 'group' AND o.queue = p.queue AND o.name = p.grp
    LEFT JOIN holdfast.pauses z ON z.kind = 'group' AND z.queue = p.queue AND z.name = p.grp
$$

-- :: function_group_rooms
-- How many more jobs of each group may become ready by its limit and its rate (negative: the excess), how many are
-- ready, and the highest turn of those.
CREATE OR REPLACE FUNCTION holdfast.group_rooms(places holdfast.place[], at double precision)
RETURNS TABLE (queue text, grp text, room bigint, ready bigint, last bigint, aging double precision, weight integer)
LANGUAGE sql STABLE AS $$
    SELECT g.queue, g.grp,
           least(g.most - p.in_play, CASE WHEN (g.rate).count IS NOT NULL THEN holdfast.allowed(g.rate, coalesce((
               SELECT f.spent_until FROM holdfast.flows f
               WHERE f.kind = 'group' AND f.queue = g.queue AND f.name = g.grp), 0), at) - p.ready END),
           p.ready, p.last, g.aging, g.weight
    FROM holdfast.limits(places) g CROSS JOIN LATERAL (
        SELECT count(*) AS in_play, count(*) FILTER (WHERE j.state = 'ready') AS ready,
               max(j.turn) FILTER (WHERE j.state = 'ready') AS last
        FROM holdfast.jobs j WHERE j.queue = g.queue AND j.grp = g.grp AND @in_play(j)) p
$$

-- :: function_withdraw
CREATE OR REPLACE FUNCTION holdfast.withdraw(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- a job that a claim is taking at this moment is no longer ready once its row lock is released
    WITH beyond AS MATERIALIZED (
        SELECT w.seq FROM holdfast.group_rooms(places, at) g CROSS JOIN LATERAL (
            SELECT r.seq FROM holdfast.jobs r
            WHERE r.queue = g.queue AND r.grp = g.grp AND r.state = 'ready'
            ORDER BY r.held, r.priority, r.ordinal DESC NULLS LAST, r.seq DESC LIMIT greatest(0, -g.room)) w)
    UPDATE holdfast.jobs j SET state = 'waiting' FROM beyond WHERE j.seq = beyond.seq AND j.state = 'ready';
END $$

-- == wake: groups that have a rate. They have no more ready jobs than the rate allows; a claim charges it, and if it
-- keeps jobs waiting, wakes_at is when refill must look again. Concurrency: whoever writes a group's rate state holds
-- the group's lock.

-- :: function_set_groups_back
CREATE OR REPLACE FUNCTION holdfast.set_groups_back(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- only groups with waiting or ready jobs
    UPDATE holdfast.flows f SET spent_until = holdfast.bounded(g.rate, f.spent_until, at)
    FROM holdfast.limits(places) g
    WHERE f.kind = 'group' AND f.queue = g.queue AND f.name = g.grp AND (g.rate).count IS NOT NULL
      AND holdfast.bounded(g.rate, f.spent_until, at) <> f.spent_until
      AND (EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'waiting' AND j.queue = g.queue AND j.grp = g.grp)
           OR EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = g.queue AND j.grp = g.grp));
END $$

-- :: function_wake
CREATE OR REPLACE FUNCTION holdfast.wake(places holdfast.place[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- also clears wakes_at once nothing waits for the rate any more
    UPDATE holdfast.flows f SET wakes_at = w.wakes_at FROM (
        SELECT l.queue, l.grp, CASE WHEN b.spent_until > at AND r.ready < @READY_PER_GROUP_MAX AND l.most > r.in_play
                   AND holdfast.allowed(l.rate, b.spent_until, at) <= r.ready
                   AND EXISTS (SELECT 1 FROM holdfast.jobs j
                               WHERE j.state = 'waiting' AND j.queue = l.queue AND j.grp = l.grp)
               THEN holdfast.opens_at(l.rate, b.spent_until) + r.ready * holdfast.every(l.rate) END AS wakes_at
        FROM holdfast.limits(places) l
        JOIN holdfast.flows b ON b.kind = 'group' AND b.queue = l.queue AND b.name = l.grp
        CROSS JOIN LATERAL (
            SELECT count(*) AS in_play, count(*) FILTER (WHERE p.state = 'ready') AS ready FROM holdfast.jobs p
            WHERE p.queue = l.queue AND p.grp = l.grp AND @in_play(p)) r) w
    WHERE f.kind = 'group' AND f.queue = w.queue AND f.name = w.grp AND f.wakes_at IS DISTINCT FROM w.wakes_at;
END $$

-- :: function_charge_groups
-- After a claim: charge its leases to the groups' rates, and refill groups that may now have more ready jobs. A group
-- without a rate whose lock is not free is left to the lock's holder, or to the end of these leases.
CREATE OR REPLACE FUNCTION holdfast.charge_groups(claimer text, number bigint, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE places holdfast.place[];
BEGIN
    SELECT array_agg(DISTINCT ROW(j.queue, j.grp)::holdfast.place) INTO places
    FROM holdfast.bounds b JOIN holdfast.jobs j ON j.queue = b.name
    WHERE b.kind = 'queue' AND (b.rated OR b.wide)
      AND j.state = 'running' AND j.worker = claimer AND j.claim_call = number AND j.grp IS NOT NULL;
    IF places IS NULL THEN RETURN; END IF;
    INSERT INTO holdfast.flows AS f (kind, queue, name, spent_until)
    SELECT 'group', g.queue, g.grp, holdfast.charged(g.rate, coalesce(b.spent_until, 0), at, s.starts)
    FROM holdfast.limits(places) g
    CROSS JOIN LATERAL (
        SELECT count(*)::integer AS starts FROM holdfast.jobs j WHERE j.state = 'running' AND j.worker = claimer
        AND j.claim_call = number AND j.queue = g.queue AND j.grp = g.grp) s
    LEFT JOIN holdfast.flows b ON b.kind = 'group' AND b.queue = g.queue AND b.name = g.grp
    WHERE (g.rate).count IS NOT NULL
    ON CONFLICT (kind, queue, name) DO UPDATE SET spent_until = excluded.spent_until;
    PERFORM holdfast.refill_groups(ARRAY(SELECT p FROM unnest(places) p WHERE holdfast.try_group(p.queue, p.grp)), at);
END $$
