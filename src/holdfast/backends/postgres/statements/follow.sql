-- follow: lease the next jobs of groups whose jobs have just ended.

-- == follow: lease the next jobs of groups whose jobs have just ended: from `waiting` to `running` in one write, where
-- refill and claim would take two. Jobs that exceed the room become ready. Takes groups and the room of a claim.
-- Returns leases. Only used where refill and claim would choose the same jobs: groups of one job at a time, none ready,
-- no limit or rate in force, nothing due, and no task with its own lane among them.
-- Concurrency: the caller holds the groups' locks and reads in later statements (groups.sql). If another session has
-- locked a row, it is skipped, its successor is not taken instead, and the next sweep refills the group.

-- :: fragment follow_if_alone
-- Part of function claim: leases the next job of a single freed group, or refills the freed groups if nothing may
-- follow in them. Groups that are still in `freed` then are left to claim_followers.
got := NULL;
IF cardinality(freed) = 1 AND NOT apart AND NOT flowing
   AND (floors IS NULL OR holdfast.may_follow(named, freed, apart, floors, at)) THEN
    got := holdfast.follow_one(freed[1], named, request ->> 'worker', number, nonce, floors IS NOT NULL, free, at, given);
END IF;
IF got.leases IS NOT NULL THEN
    freed := NULL;
ELSIF freed IS NOT NULL AND NOT holdfast.may_follow(named, freed, apart, floors, at) THEN
    PERFORM holdfast.refill_groups(freed, at);
    freed := NULL;
END IF

-- :: fragment keeps_simple_order
-- Nothing but a group's own order decides which of its jobs is next: no job is due that could come first, and the queue
-- `named` is strict, without a window for late orders and without weights.
NOT EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = named
                AND (group_order = 'relaxed' OR order_window IS NOT NULL))
AND NOT EXISTS (SELECT FROM holdfast.overrides WHERE kind = 'group' AND queue = named AND weight > 1)

-- :: function_may_follow
CREATE OR REPLACE FUNCTION holdfast.may_follow(named text, freed holdfast.place[], apart boolean, floors jsonb,
                                               at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF floors IS NOT NULL THEN  -- not if the scan of ready ungrouped jobs needs a floor: see floors.sql
        IF (floors -> 'full')::boolean OR floors #> ARRAY['queues', named, '0'] <> '{}'
           OR holdfast.has_ready_behind(named, 1::smallint, floors #> ARRAY['queues', named, '1']) THEN RETURN false; END IF;
    ELSIF EXISTS (SELECT FROM holdfast.jobs WHERE state = 'ready' AND queue = named AND lane = 1) THEN
        RETURN false;
    END IF;
    RETURN @keeps_simple_order
        AND NOT (apart AND (holdfast.has_lanes(named) OR holdfast.next_is_apart(named, freed)));
END $$

-- :: function_next_is_apart
CREATE OR REPLACE FUNCTION holdfast.next_is_apart(named text, freed holdfast.place[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- the groups are locked, so their next jobs cannot change
    RETURN EXISTS (SELECT FROM unnest(freed) f CROSS JOIN LATERAL (
        SELECT c.task FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
        ORDER BY @group_order(c) LIMIT 1) w
        JOIN holdfast.bounds b ON b.kind = 'task' AND b.name = w.task WHERE f.queue = named);
END $$

-- :: function_claim_followers
-- The room is shared with ungrouped jobs, and all of them fit or none is taken, as in claim_lanes. No queue has aging
-- here, and none of the jobs belongs to a task with its own lane.
CREATE OR REPLACE FUNCTION holdfast.claim_followers(freed holdfast.place[], named text, room integer, first integer,
    claimer text, number bigint, nonce text, free bigint, at double precision, given double precision)
RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE got holdfast.taken;
BEGIN
    WITH heads AS MATERIALIZED (
        SELECT w.seq, w.turn, w.held, w.priority FROM unnest(freed) f CROSS JOIN LATERAL (
            SELECT c.seq, c.turn, c.held, c.priority FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
            ORDER BY @group_order(c) LIMIT CASE WHEN (
                SELECT true FROM holdfast.jobs p WHERE p.queue = f.queue AND p.grp = f.grp AND @in_play(p) LIMIT 1)
                THEN 0 ELSE 1 END) w
        WHERE f.queue = named
          AND f.grp <> ALL (ARRAY(SELECT z.name FROM holdfast.pauses z WHERE z.kind = 'group' AND z.queue = named))
    ), locked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT h.*, octet_length(j.args) AS size, j.expires_at IS NOT NULL AND j.expires_at <= at AS expired,
               @is_parked(j.task) AS parked
        FROM heads h JOIN holdfast.jobs j ON j.seq = h.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), turned AS MATERIALIZED (
        SELECT l.seq, l.size, l.priority, l.expired, l.parked, coalesce(l.turn, nextval('holdfast.ticks')) AS turn
        FROM (SELECT * FROM locked o ORDER BY o.held DESC, o.priority DESC, o.seq) l
    ), ungrouped AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size @in_lane(0)
        LIMIT room - least((SELECT count(*) FROM turned WHERE NOT expired AND NOT parked), CASE first
            WHEN 0 THEN room / 2
            ELSE room - (SELECT count(*) FROM (SELECT @in_lane(0) LIMIT room / 2) s) END)
        FOR UPDATE SKIP LOCKED
    ), lined AS (
        SELECT t.seq, t.size, t.turn, t.expired OR t.parked AS stays,
               row_number() OVER (ORDER BY t.expired OR t.parked, t.priority DESC, t.turn, t.seq) AS n FROM turned t
        UNION ALL
        SELECT u.seq, u.size, NULL, false, row_number() OVER () FROM ungrouped u
    ), numbered AS MATERIALIZED (
        SELECT o.seq, o.size, o.turn, CASE WHEN o.goes THEN nextval('holdfast.ticks') END AS fence
        FROM (SELECT l.*, l.turn IS NULL OR NOT l.stays AND l.n <= room - (SELECT count(*) FROM ungrouped) AS goes
              FROM lined l ORDER BY (l.turn IS NULL) = (first = 1), l.n) o
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = CASE WHEN n.fence IS NULL THEN 'ready' ELSE 'running' END,
            turn = coalesce(n.turn, j.turn), rank = j.priority, lane = @lane_in_bulk(j.task, j.grp),
            fence = coalesce(n.fence, j.fence), token = @token,
            worker = CASE WHEN n.fence IS NOT NULL THEN claimer END,
            claim_call = CASE WHEN n.fence IS NOT NULL THEN number END,
            started_at = CASE WHEN n.fence IS NULL THEN j.started_at ELSE (SELECT holdfast.store_now(given)) END,
            begun = j.begun AND n.fence IS NULL, limited = j.limited AND n.fence IS NULL,
            holds_key = CASE WHEN n.fence IS NULL THEN j.holds_key ELSE @keeps_key END
        FROM numbered n
        WHERE j.seq = n.seq AND coalesce((SELECT sum(size) FROM numbered WHERE fence IS NOT NULL), 0) <= free
        RETURNING n.fence, holdfast.lease(j) AS lease, j.args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''),
           count(*) = 0 AND (SELECT fence FROM numbered WHERE fence IS NOT NULL LIMIT 1) IS NOT NULL INTO got
    FROM (SELECT * FROM taken WHERE taken.fence IS NOT NULL ORDER BY taken.fence) t;
    RETURN got;
END $$

-- :: function_follow_one
-- The same for a single group that has the queue to itself: nothing is ready in it. One small statement instead of the
-- many steps of claim_followers, which cost more than the lease itself. No lease means use the general path: another
-- job is ready or due, the group is paused, busy, empty or relaxed, the queue has weights or a window for late orders,
-- or the group's next job is locked, expired, parked or large. `floored`: may_follow has looked for grouped ready jobs,
-- behind a floor.
CREATE OR REPLACE FUNCTION holdfast.follow_one(freed holdfast.place, named text, claimer text, number bigint, nonce text,
    floored boolean, free bigint, at double precision, given double precision) RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE got holdfast.taken;
BEGIN
    WITH head AS MATERIALIZED (
        SELECT c.seq FROM holdfast.jobs c
        WHERE c.state = 'waiting' AND c.queue = freed.queue AND c.grp = freed.grp AND freed.queue = named
          AND NOT EXISTS (SELECT FROM holdfast.jobs WHERE state = 'ready' AND queue = named AND lane = 0)
          AND (floored OR NOT EXISTS (SELECT FROM holdfast.jobs WHERE state = 'ready' AND queue = named AND lane = 1))
          AND NOT EXISTS (SELECT FROM holdfast.jobs p WHERE p.queue = freed.queue AND p.grp = freed.grp AND @in_play(p))
          AND @keeps_simple_order
          AND NOT EXISTS (SELECT FROM holdfast.pauses z WHERE z.kind = 'group' AND z.queue = named AND z.name = freed.grp)
        ORDER BY @group_order(c) LIMIT 1
    ), locked AS MATERIALIZED (  -- CASE: as in claim_followers
        SELECT j.seq, j.turn FROM head h JOIN holdfast.jobs j ON j.seq = h.seq
        WHERE CASE j.state WHEN 'waiting' THEN (j.expires_at IS NULL OR j.expires_at > at) AND NOT @is_parked(j.task) END
          AND octet_length(j.args) <= free
        FOR UPDATE OF j SKIP LOCKED
    ), numbered AS MATERIALIZED (
        SELECT l.seq, coalesce(l.turn, nextval('holdfast.ticks')) AS turn, nextval('holdfast.ticks') AS fence FROM locked l
    )
    UPDATE holdfast.jobs j
    SET state = 'running', turn = n.turn, rank = j.priority, lane = 1, @leased(holdfast.store_now(given), false)
    FROM numbered n WHERE j.seq = n.seq
    RETURNING ARRAY[holdfast.lease(j)], @carried(octet_length(j.args)), false INTO got;
    RETURN got;
END $$
