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
-- of here copies them, which costs more than looking the jobs up once more: see bodies in exchange.sql.
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
    choosy boolean := share IS NOT NULL OR request ->> 'priorities' IS NOT NULL;  -- of what it finds in a lane
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
        @follow_if_alone;
        IF bounded OR flowing OR apart AND holdfast.has_lanes(named) THEN
            room := least(room, holdfast.queue_room(named, at));
            CONTINUE WHEN room <= 0;
            SELECT * INTO b FROM holdfast.bounds WHERE kind = 'queue' AND name = named;
            further := holdfast.task_rooms(named, rooms, request, at);
            before := before || further;
            rooms := rooms || further;
        END IF;
        IF freed IS NOT NULL THEN
            got := holdfast.claim_followers(freed, named, room, (number % 2)::integer, request ->> 'worker', number,
                                            nonce, free, at, given);
            IF got.is_full THEN PERFORM holdfast.refill_groups(freed, at); END IF;
            freed := CASE WHEN NOT got.is_full THEN (SELECT array_agg(f) FROM unnest(freed) f WHERE f.queue <> named) END;
        ELSIF got.leases IS NULL AND rooms = '{}' AND NOT choosy AND b.rated IS NOT TRUE AND NOT pending AND floors IS NULL THEN
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
