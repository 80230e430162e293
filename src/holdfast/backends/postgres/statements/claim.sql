-- claim: which ready jobs a claim takes, and their leases.

-- == claim: lease ready jobs to a worker. Group limits were enforced when a job became ready; limits of queues and
-- tasks, and rates, are enforced here. Ready and running jobs both occupy their group, so a claim changes no group's
-- occupancy and needs no group lock. Concurrency: rows are locked with SKIP LOCKED in materialized CTEs (a bare LIMIT
-- sub-query may run twice); the caller has locked the queues and tasks that have a limit or a rate (rates.sql).
-- started_at is read from the clock after the job was found: `at` may by then be older than the write that made the job
-- ready, or than a rival's start that counts against the same rate, and starts could not be counted per window by it. A
-- token contains what settle would otherwise have to look up: the job's seq, and whether it has a group.
-- A claim stops before the arguments it returns exceed `free` bytes; the very first job always fits (`opening`). The
-- size of a stored value is read from its header: arguments of jobs that do not fit are never fetched. Usually all jobs
-- fit: they are summed up together, and one by one (function take) only if they do not.

-- :: fragment leased(started_at, limited)
-- What a lease writes into the job j, with the fence and the token it gets from n.
fence = n.fence, token = @token, worker = claimer, claim_call = number, started_at = @started_at, begun = false,
limited = @limited, holds_key = @keeps_key

-- :: fragment token
j.seq || '.' || to_hex(n.fence) || '.' || nonce || CASE WHEN j.grp IS NULL THEN '' ELSE 'g' END

-- :: fragment keeps_key
-- Whether the job j still holds its key once it has started.
j.holds_key AND NOT (j.key_until_started AND j.key_window IS NULL)

-- :: fragment in_lane(lane)
-- The ready jobs of a lane, in the order in which they are claimed.
FROM holdfast.jobs
WHERE state = 'ready' AND queue = named AND lane = @lane AND (expires_at IS NULL OR expires_at > at)
ORDER BY rank DESC, turn, seq

-- :: fragment carried(bytes)
-- The arguments of a job j, if those of all jobs taken with it are few bytes. Every variable and result on the way out
-- of here copies them, which costs more than to look the jobs up once more at the end: see bodies_of in exchange.sql.
CASE WHEN (@bytes) <= 65536 THEN j.args END

-- :: function_bytes_of
-- How many bytes of arguments these leases have, if they were not carried along.
CREATE OR REPLACE FUNCTION holdfast.bytes_of(leases text[]) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(size::bigint), 0)::bigint FROM unnest(leases[:][6:6]) size
$$

-- :: function_claim_lanes
-- The second lane gets half of the room if it can use it; what one lane cannot use goes to the other. All or nothing:
-- if the arguments together exceed `free`, nothing is taken and `is_full` is true.
CREATE OR REPLACE FUNCTION holdfast.claim_lanes(named text, room integer, first integer, claimer text, number bigint,
    nonce text, caps boolean, free bigint, at double precision, given double precision)
RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE got holdfast.taken;
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size @in_lane(first)
        LIMIT room - (SELECT count(*) FROM (SELECT @in_lane(1 - first) LIMIT room / 2) s)
        FOR UPDATE SKIP LOCKED
    ), behind AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size @in_lane(1 - first) LIMIT room - (SELECT count(*) FROM ahead)
        FOR UPDATE SKIP LOCKED
    ), numbered AS MATERIALIZED (
        SELECT b.seq, b.size, nextval('holdfast.ticks') AS fence
        FROM (SELECT seq, size FROM ahead UNION ALL SELECT seq, size FROM behind) b
    ), total AS MATERIALIZED (
        SELECT sum(size) AS bytes FROM numbered
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = 'running', @leased((SELECT holdfast.store_now(given)), caps)
        FROM numbered n WHERE j.seq = n.seq AND (SELECT bytes FROM total) <= free
        RETURNING j.fence, holdfast.lease(j) AS lease, @carried(SELECT bytes FROM total) AS args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''), count(*) = 0 AND (SELECT seq FROM numbered LIMIT 1) IS NOT NULL INTO got
    FROM (SELECT * FROM taken ORDER BY taken.fence) t;
    RETURN got;
END $$

-- :: function_lease
-- The fields of the record Lease, in its order, all as text: a third of what building a JSON object would cost.
-- Contains only the length of the arguments, which are returned as raw bytes, concatenated (`bodies`).
CREATE OR REPLACE FUNCTION holdfast.lease(j holdfast.jobs) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY[j.id, j.token, j.fence::text, j.task, j.queue, octet_length(j.args)::text, j.priority::text, j.grp, j.key,
        (@counted(j.attempts, 1))::text, j.failures::text, j.stalls::text, j.max_stalls::text, j.created_at::text,
        j.started_at::text, encode(j.options, 'base64'), j.suspect::text, j.shared_stalls::text, j.due_at::text]
$$

-- :: function_taken_with
CREATE OR REPLACE FUNCTION holdfast.taken_with(taken holdfast.taken, more holdfast.taken)
RETURNS holdfast.taken LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF taken.leases IS NULL THEN RETURN more; END IF;
    IF more.leases IS NULL THEN RETURN taken; END IF;
    RETURN ROW(taken.leases || more.leases, taken.bodies || more.bodies, more.is_full)::holdfast.taken;
END $$

-- :: function_base64
CREATE OR REPLACE FUNCTION holdfast.base64(content bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT translate(encode(content, 'base64'), E'\n', '')
$$

-- :: function_claim
CREATE OR REPLACE FUNCTION holdfast.claim(request jsonb, paused text[], freed holdfast.place[], nonce text,
    bounded boolean, apart boolean, flowing boolean, pending boolean, at double precision, given double precision,
    OUT taken holdfast.taken, OUT floors jsonb, OUT chained integer) LANGUAGE plpgsql AS $$
DECLARE
    most integer := (request ->> 'most')::integer;
    number bigint := (request ->> 'call')::bigint;
    share integer := (request ->> 'most_by_group')::integer;
    before jsonb := '{}';  -- by task with its own lane: how many more of its jobs could start before this claim
    rooms jsonb := '{}';
    further jsonb;
    b holdfast.bounds;
    named text;
    room integer;
    free bigint := (request ->> 'bytes_max')::bigint;
    got holdfast.taken;
    shared record;
BEGIN
    floors := request -> 'floors';
    IF bounded AND flowing THEN
        PERFORM holdfast.set_back('queue', ARRAY(SELECT jsonb_array_elements_text(request -> 'queues')), at);
    END IF;
    FOR n IN 0 .. jsonb_array_length(request -> 'queues') - 1 LOOP
        named := request -> 'queues' ->> n;
        CONTINUE WHEN named = ANY (paused);
        room := least(most - coalesce(array_length(taken.leases, 1), 0), (request -> 'most_by_queue' ->> named)::integer);
        CONTINUE WHEN room <= 0;
        IF freed IS NOT NULL AND NOT holdfast.may_follow(named, freed, apart, floors, at) THEN
            PERFORM holdfast.refill_groups(freed, at);
            freed := NULL;
        END IF;
        IF bounded OR flowing OR apart AND holdfast.has_lanes(named) THEN
            room := least(room, holdfast.queue_room(named, at));
            CONTINUE WHEN room <= 0;
            SELECT * INTO b FROM holdfast.bounds WHERE kind = 'queue' AND name = named;
            further := holdfast.task_rooms(named, rooms, request, at);
            before := before || further;
            rooms := rooms || further;
        END IF;
        got := NULL;
        IF freed IS NOT NULL THEN
            got := holdfast.claim_followers(freed, named, room, (number % 2)::integer, request ->> 'worker', number,
                                            nonce, free, at, given);
            IF got.is_full THEN PERFORM holdfast.refill_groups(freed, at); END IF;
            freed := CASE WHEN NOT got.is_full THEN (SELECT array_agg(f) FROM unnest(freed) f WHERE f.queue <> named) END;
        ELSIF rooms = '{}' AND share IS NULL AND b.rated IS NOT TRUE AND NOT pending AND floors IS NULL THEN
            got := holdfast.claim_lanes(named, room, (number % 2)::integer, request ->> 'worker', number, nonce,
                                        b.job_limit IS NOT NULL, free, at, given);
        END IF;
        IF got.is_full IS NOT FALSE THEN  -- no fast path applied, or not all jobs fit
            shared := holdfast.claim_shares(named, room, request, nonce, b.job_limit IS NOT NULL, b.rated IS TRUE,
                                            pending, taken.leases IS NULL, free, at, given, rooms, floors);
            rooms := shared.rooms;
            floors := shared.floors;
            got := shared.got;
        END IF;
        IF taken.leases IS NULL THEN taken := got; ELSE taken := holdfast.taken_with(taken, got); END IF;
        free := free - coalesce(octet_length(got.bodies), holdfast.bytes_of(got.leases));
        at := holdfast.store_now(given);
        IF bounded THEN PERFORM holdfast.charge('queue', named, coalesce(array_length(got.leases, 1), 0), at); END IF;
        EXIT WHEN got.is_full;
    END LOOP;
    IF freed IS NOT NULL THEN PERFORM holdfast.refill_groups(freed, at); END IF;
    IF taken.leases IS NOT NULL AND before <> '{}' THEN
        PERFORM holdfast.charge('task', t.name, (before ->> t.name)::integer - (rooms ->> t.name)::integer, at)
        FROM jsonb_object_keys(before) t(name);
    END IF;
    IF taken.leases IS NOT NULL AND bounded THEN PERFORM holdfast.charge_groups(request ->> 'worker', number, at); END IF;
    IF taken.leases IS NOT NULL AND (request ->> 'chained_max')::integer > 0 AND NOT pending THEN
        got := holdfast.chain(taken, request, nonce, free, at);
        chained := array_length(got.leases, 1);
        taken := holdfast.taken_with(taken, got);
    END IF;
END $$

-- == lanes: how a claim divides its room among the lanes of a queue if there are more than two of them, if the worker
-- caps its jobs per group, or if groups have rates. (claim_lanes handles the common case.)
-- Concurrency: rows are locked with SKIP LOCKED as they are found. If groups have rates, a job is taken only if its
-- group's lock is free at this moment: whoever writes a group's rate state holds that lock, so nobody waits for it.

-- :: function_claim_shares
CREATE OR REPLACE FUNCTION holdfast.claim_shares(named text, room integer, request jsonb, nonce text, caps boolean,
    guarded boolean, pending boolean, opening boolean, free bigint, at double precision, given double precision,
    INOUT rooms jsonb, INOUT floors jsonb, OUT got holdfast.taken)
LANGUAGE plpgsql AS $$
DECLARE
    number bigint := (request ->> 'call')::bigint;
    share integer := (request ->> 'most_by_group')::integer;
    tasks text[] := ARRAY[NULL, NULL] || ARRAY(  -- the lanes: ungrouped, grouped, then tasks by name
        SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'task' AND (rooms ->> b.name)::integer > 0
        AND holdfast.has_lane(ARRAY[named], b.lane) ORDER BY b.name);
    lanes_number integer := cardinality(tasks);
    looks integer[] := array_fill(0, ARRAY[lanes_number]);
    done boolean[] := array_fill(false, ARRAY[lanes_number]);
    b holdfast.bounds;
    nth integer;
    wanted integer;
    passed integer;
    heads bigint[];
    more holdfast.taken;
    started integer;
    floored boolean := floors IS NOT NULL AND NOT (guarded OR pending OR share IS NOT NULL OR EXISTS (
        SELECT FROM holdfast.bounds a WHERE a.kind = 'queue' AND a.name = named AND a.aging IS NOT NULL));
    way text[];  -- JSON path to the lane's floors
    behind jsonb;
BEGIN
    FOR round IN 1 .. 2 LOOP
        FOR place IN 0 .. lanes_number - 1 LOOP
            nth := (number + place) % lanes_number + 1;
            wanted := CASE round WHEN 1 THEN ceil(room::numeric / (lanes_number - place)) ELSE room END;
            SELECT * INTO b FROM holdfast.bounds WHERE kind = 'task' AND name = tasks[nth];
            wanted := least(wanted, (rooms ->> b.name)::integer);
            CONTINUE WHEN wanted <= 0 OR done[nth];
            IF floored THEN
                way := ARRAY['queues', named, coalesce(b.lane, nth - 1)::text];
                SELECT h.heads, h.behind INTO heads, behind FROM holdfast.heads_behind(
                    named, coalesce(b.lane, nth - 1)::smallint, wanted, floors #> way, (floors -> 'full')::boolean, at) h;
            ELSE
                heads := holdfast.lane_heads(named, coalesce(b.lane, nth - 1)::smallint, wanted + CASE
                    WHEN share IS NULL THEN 0 ELSE 64 - looks[nth] END, guarded,
                    CASE WHEN pending THEN (request ->> 'sweep_max')::integer END, at);
            END IF;
            IF share IS NOT NULL THEN
                SELECT w.fitting, w.passed INTO heads, passed
                FROM holdfast.within_share(heads, named, request ->> 'worker', share, wanted, looks[nth]) w;
                looks[nth] := passed;
            END IF;
            done[nth] := cardinality(heads) < wanted;
            IF cardinality(heads) = 0 THEN
                IF floored THEN floors := holdfast.with_floors(floors, way, behind); END IF;
                CONTINUE;
            END IF;
            more := holdfast.take(heads, request ->> 'worker', number, nonce, caps OR b.job_limit IS NOT NULL,
                                  opening AND got.leases IS NULL, free, given);
            got := holdfast.taken_with(got, more);
            free := free - coalesce(octet_length(more.bodies), holdfast.bytes_of(more.leases));
            started := coalesce(array_length(more.leases, 1), 0);
            room := room - started;
            IF nth > 2 THEN
                rooms := rooms || jsonb_build_object(b.name, (rooms ->> b.name)::integer - started);
            END IF;
            IF more.is_full THEN
                got.is_full := true;
                RETURN;
            END IF;
            IF floored THEN floors := holdfast.with_floors(floors, way, behind); END IF;
        END LOOP;
    END LOOP;
END $$

-- :: function_lane_heads
-- `sweep` is set while a changed rule is still being applied; it limits how much of that may be done here.
CREATE OR REPLACE FUNCTION holdfast.lane_heads(named text, number smallint, most integer, guarded boolean, sweep integer,
                                               at double precision) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    IF sweep IS NOT NULL THEN RETURN holdfast.sound_heads(named, number, most, sweep, guarded, at); END IF;
    RETURN ARRAY(SELECT seq FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = number AND (expires_at IS NULL OR expires_at > at)
          AND CASE WHEN guarded AND grp IS NOT NULL THEN holdfast.try_group(queue, grp) ELSE true END
        ORDER BY rank DESC, turn, seq LIMIT most FOR UPDATE SKIP LOCKED);
END $$

-- :: function_within_share
-- Of these jobs, in order, up to `wanted` in whose groups this worker is below its share. At most 64 others
-- (GROUP_LOOKS_MAX) are skipped, including those of an earlier round.
CREATE OR REPLACE FUNCTION holdfast.within_share(heads bigint[], named text, claimer text, share integer,
    wanted integer, looks integer, OUT fitting bigint[], OUT passed integer) LANGUAGE sql AS $$
    WITH ours AS MATERIALIZED (
        SELECT grp, count(*) AS number FROM holdfast.jobs
        WHERE state = 'running' AND worker = claimer AND queue = named AND grp IS NOT NULL GROUP BY grp
    ), judged AS (
        SELECT h.n, h.seq, j.grp IS NULL OR share >= coalesce(o.number, 0)
                           + row_number() OVER (PARTITION BY j.grp ORDER BY h.n) AS fits
        FROM unnest(heads) WITH ORDINALITY h(seq, n) JOIN holdfast.jobs j ON j.seq = h.seq
        LEFT JOIN ours o ON o.grp = j.grp
    ), counted AS (
        SELECT n, seq, fits, count(*) FILTER (WHERE fits) OVER (ORDER BY n) AS taken,
               looks + count(*) FILTER (WHERE NOT fits) OVER (ORDER BY n) AS looked FROM judged
    )
    SELECT coalesce(array_agg(seq ORDER BY n) FILTER (WHERE fits AND taken <= wanted AND looked <= 64), '{}'),
           (looks + count(*) FILTER (WHERE NOT fits AND taken < wanted AND looked <= 64))::integer
    FROM counted
$$

-- :: function_take
CREATE OR REPLACE FUNCTION holdfast.take(seqs bigint[], claimer text, number bigint, nonce text, caps boolean,
    opening boolean, free bigint, given double precision) RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    got holdfast.taken;
BEGIN
    WITH lined AS MATERIALIZED (
        SELECT s.seq, s.n, sum(octet_length(j.args)) OVER (ORDER BY s.n) AS bytes
        FROM unnest(seqs) WITH ORDINALITY s(seq, n) JOIN holdfast.jobs j ON j.seq = s.seq ORDER BY s.n
    ), numbered AS MATERIALIZED (
        SELECT l.seq, l.bytes, nextval('holdfast.ticks') AS fence FROM lined l
        WHERE l.bytes <= free OR opening AND l.n = 1
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = 'running', @leased(at, caps)
        FROM numbered n WHERE j.seq = n.seq
        RETURNING j.fence, holdfast.lease(j) AS lease, @carried(SELECT max(bytes) FROM numbered) AS args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''), cardinality(seqs) > count(*) INTO got
    FROM (SELECT * FROM taken ORDER BY taken.fence) t;
    RETURN got;
END $$

-- == follow: lease the next jobs of groups whose jobs have just ended: from `waiting` to `running` in one write, where
-- refill and claim would take two. Jobs that exceed the room become ready. Takes groups and the room of a claim.
-- Returns leases. Only used where refill and claim would choose the same jobs: groups of one job at a time, none ready,
-- no limit or rate in force, nothing due, and no task with its own lane among them.
-- Concurrency: the caller holds the groups' locks and reads in later statements (groups.sql). If another session has
-- locked a row, it is skipped, its successor is not taken instead, and the next sweep refills the group.

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
    RETURN NOT EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
        AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = named AND group_order = 'relaxed')
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
            SELECT count(*) AS number FROM holdfast.jobs p
            WHERE p.queue = f.queue AND p.grp = f.grp AND @in_play(p)) in_play
        CROSS JOIN LATERAL (
            SELECT c.seq, c.turn, c.held, c.priority FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
            ORDER BY @group_order(c) LIMIT CASE in_play.number WHEN 0 THEN 1 ELSE 0 END) w
        WHERE f.queue = named
          AND f.grp <> ALL (ARRAY(SELECT z.name FROM holdfast.pauses z WHERE z.kind = 'group' AND z.queue = named))
    ), locked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT h.*, octet_length(j.args) AS size, j.expires_at IS NOT NULL AND j.expires_at <= at AS expired,
               @is_parked(j.task) AS parked
        FROM heads h JOIN holdfast.jobs j ON j.seq = h.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), turned AS MATERIALIZED (
        SELECT l.seq, l.size, l.priority, l.expired, l.parked, coalesce(l.turn, nextval('holdfast.ticks')) AS turn
        FROM (SELECT * FROM locked o ORDER BY @group_order(o)) l
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
