-- follow: the next jobs of groups whose jobs just ended, leased at once: from `waiting` to `running` in one write, where
-- refill and claim would write them twice. What there is no room for becomes ready.
-- Takes groups and the room of a claim. Returns leases. Only where refill and claim would choose the same jobs: groups of
-- one job at a time, none ready, no limit or rate in force, nothing due, and no task apart among them.
-- Safe against a rival: the caller holds the groups' locks and looks in later statements (refill.sql). A row that a
-- stranger locked is passed over, not its successor taken: its group is refilled by the next sweep.

-- :: function_may_follow
CREATE OR REPLACE FUNCTION holdfast.may_follow(named text, freed holdfast.place[], apart boolean, floors jsonb,
                                               at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF floors IS NOT NULL THEN  -- not where ready jobs without a group are looked for behind a floor: see floors.sql
        IF (floors -> 'full')::boolean OR floors #> ARRAY['queues', named, '0'] <> '{}'
           OR holdfast.has_ready_behind(named, 1::smallint, floors #> ARRAY['queues', named, '1']) THEN RETURN false; END IF;
    ELSIF EXISTS (SELECT FROM holdfast.jobs WHERE state = 'ready' AND queue = named AND lane = 1) THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
        AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = named AND group_order = 'relaxed')
        AND NOT (apart AND (holdfast.has_lanes(named) OR holdfast.next_is_apart(named, freed)));
END $$

-- :: function_next_is_apart
CREATE OR REPLACE FUNCTION holdfast.next_is_apart(named text, freed holdfast.place[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- the groups are locked: who comes next in them stays so
    RETURN EXISTS (SELECT FROM unnest(freed) f CROSS JOIN LATERAL (
        SELECT c.task FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
        ORDER BY c.held DESC, c.priority DESC, c.seq LIMIT 1) w
        JOIN holdfast.bounds b ON b.kind = 'task' AND b.name = w.task WHERE f.queue = named);
END $$

-- :: function_claim_followers
-- The room is shared with jobs that have no group, and all of them fit or none is taken, as in claim_lanes. No queue ages
-- its jobs here, and none of them is of a task apart.
CREATE OR REPLACE FUNCTION holdfast.claim_followers(freed holdfast.place[], named text, room integer, first integer,
    claimer text, number bigint, nonce text, free bigint, at double precision, given double precision)
RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE got holdfast.taken;
BEGIN
    WITH heads AS MATERIALIZED (
        SELECT w.seq, w.turn, w.held, w.priority FROM unnest(freed) f CROSS JOIN LATERAL (
            SELECT count(*) AS number FROM holdfast.jobs p WHERE p.queue = f.queue AND p.grp = f.grp AND p.grp IS NOT NULL
            AND (p.state IN ('ready', 'running') OR (p.state = 'scheduled' AND p.held))) in_play
        CROSS JOIN LATERAL (
            SELECT c.seq, c.turn, c.held, c.priority FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
            ORDER BY c.held DESC, c.priority DESC, c.seq LIMIT CASE in_play.number WHEN 0 THEN 1 ELSE 0 END) w
        WHERE f.queue = named
          AND f.grp <> ALL (ARRAY(SELECT z.name FROM holdfast.pauses z WHERE z.kind = 'group' AND z.queue = named))
    ), locked AS MATERIALIZED (  -- said so that only the key can find the row: planned on an empty store, kept for long
        SELECT h.*, octet_length(j.args) AS size, j.expires_at IS NOT NULL AND j.expires_at <= at AS expired,
               j.task = ANY (ARRAY(SELECT z.name FROM holdfast.pauses z WHERE z.kind = 'task')) AS parked
        FROM heads h JOIN holdfast.jobs j ON j.seq = h.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), turned AS MATERIALIZED (
        SELECT l.seq, l.size, l.priority, l.expired, l.parked, coalesce(l.turn, nextval('holdfast.ticks')) AS turn
        FROM (SELECT * FROM locked ORDER BY held DESC, priority DESC, seq) l
    ), ungrouped AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = 0 AND (expires_at IS NULL OR expires_at > at)
        ORDER BY rank DESC, turn, seq
        LIMIT room - least((SELECT count(*) FROM turned WHERE NOT expired AND NOT parked), CASE first
            WHEN 0 THEN room / 2
            ELSE room - (SELECT count(*) FROM (
                SELECT FROM holdfast.jobs
                WHERE state = 'ready' AND queue = named AND lane = 0 AND (expires_at IS NULL OR expires_at > at)
                ORDER BY rank DESC, turn, seq LIMIT room / 2) s) END)
        FOR UPDATE SKIP LOCKED
    ), lined AS (
        SELECT t.seq, t.size, t.turn, t.parked, t.expired OR t.parked AS stays,
               row_number() OVER (ORDER BY t.expired OR t.parked, t.priority DESC, t.turn, t.seq) AS n FROM turned t
        UNION ALL
        SELECT u.seq, u.size, NULL, false, false, row_number() OVER () FROM ungrouped u
    ), numbered AS MATERIALIZED (
        SELECT o.seq, o.size, o.turn, o.parked, CASE WHEN o.goes THEN nextval('holdfast.ticks') END AS fence
        FROM (SELECT l.*, l.turn IS NULL OR NOT l.stays AND l.n <= room - (SELECT count(*) FROM ungrouped) AS goes
              FROM lined l ORDER BY (l.turn IS NULL) = (first = 1), l.n) o
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = CASE WHEN n.fence IS NULL THEN 'ready' ELSE 'running' END,
            turn = coalesce(n.turn, j.turn), rank = CASE WHEN n.turn IS NULL THEN j.rank ELSE j.priority END,
            lane = CASE WHEN n.turn IS NULL THEN 0 WHEN n.parked THEN 2 ELSE 1 END,
            fence = coalesce(n.fence, j.fence), token = j.seq || '.' || to_hex(n.fence) || '.' || nonce
                || CASE WHEN j.grp IS NULL THEN '' ELSE 'g' END,
            worker = CASE WHEN n.fence IS NOT NULL THEN claimer END,
            claim_call = CASE WHEN n.fence IS NOT NULL THEN number END,
            started_at = CASE WHEN n.fence IS NULL THEN j.started_at ELSE (SELECT holdfast.store_now(given)) END,
            begun = j.begun AND n.fence IS NULL, limited = j.limited AND n.fence IS NULL,
            holds_key = j.holds_key AND NOT (n.fence IS NOT NULL AND j.key_until_started AND j.key_window IS NULL)
        FROM numbered n
        WHERE j.seq = n.seq AND coalesce((SELECT sum(size) FROM numbered WHERE fence IS NOT NULL), 0) <= free
        RETURNING n.fence, holdfast.lease(j) AS lease, j.args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''),
           count(*) = 0 AND (SELECT fence FROM numbered WHERE fence IS NOT NULL LIMIT 1) IS NOT NULL INTO got
    FROM (SELECT * FROM taken WHERE taken.fence IS NOT NULL ORDER BY taken.fence) t;
    RETURN got;
END $$
