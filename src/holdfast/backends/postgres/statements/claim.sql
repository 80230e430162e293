-- claim: lease ready jobs to a worker. Groups' limits were obeyed when a job became ready; those of queues and tasks, and
-- rates, are obeyed here. Ready and running both count as in play: a claim changes no group's occupancy and needs no
-- group's lock. Safe against a rival: rows are locked with SKIP LOCKED in materialised CTEs (a bare LIMIT sub-query may
-- run twice); the caller locked the queues and tasks that have a limit or a rate (allow.sql). When a job started is
-- read off the clock after the job was found: by then `at` may be older than what made it ready, or than a rival's start
-- that is charged to the same bucket, and no window of a rate could be counted by it.
-- A token says what settle would otherwise have to look up: whose it is, and whether that one has a group.
-- A claim ends before the arguments it hands out exceed `free` bytes; the first job of all fits always (`opening`). What
-- a stored value takes is read off its header: the arguments of jobs that are left out are not fetched. Mostly all fit:
-- they are weighed together, and one by one (lanes.sql) only where they do not.

-- :: function_claim_lanes
-- Of the room, the second lane gets its half where it can use it; what one cannot use the other may. All or nothing: where
-- their arguments together exceed `free`, none is taken and `is_full` is true.
CREATE OR REPLACE FUNCTION holdfast.claim_lanes(named text, room integer, first integer, claimer text, number bigint,
    nonce text, caps boolean, free bigint, at double precision, given double precision)
RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE got holdfast.taken;
BEGIN
    WITH ahead AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = first AND (expires_at IS NULL OR expires_at > at)
        ORDER BY rank DESC, turn, seq
        LIMIT room - (SELECT count(*) FROM (
            SELECT FROM holdfast.jobs
            WHERE state = 'ready' AND queue = named AND lane = 1 - first AND (expires_at IS NULL OR expires_at > at)
            ORDER BY rank DESC, turn, seq LIMIT room / 2) s)
        FOR UPDATE SKIP LOCKED
    ), behind AS MATERIALIZED (
        SELECT seq, octet_length(args) AS size FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = 1 - first AND (expires_at IS NULL OR expires_at > at)
        ORDER BY rank DESC, turn, seq LIMIT room - (SELECT count(*) FROM ahead)
        FOR UPDATE SKIP LOCKED
    ), numbered AS MATERIALIZED (
        SELECT b.seq, b.size, nextval('holdfast.ticks') AS fence
        FROM (SELECT seq, size FROM ahead UNION ALL SELECT seq, size FROM behind) b
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = 'running', fence = n.fence, token = j.seq || '.' || to_hex(n.fence) || '.' || nonce
                || CASE WHEN j.grp IS NULL THEN '' ELSE 'g' END, worker = claimer,
            claim_call = number, started_at = (SELECT holdfast.store_now(given)), begun = false, limited = caps,
            holds_key = j.holds_key AND NOT (j.key_until_started AND j.key_window IS NULL)
        FROM numbered n WHERE j.seq = n.seq AND (SELECT sum(size) FROM numbered) <= free
        RETURNING j.fence, holdfast.lease(j) AS lease, j.args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''), count(*) = 0 AND (SELECT seq FROM numbered LIMIT 1) IS NOT NULL INTO got
    FROM (SELECT * FROM taken ORDER BY taken.fence) t;
    RETURN got;
END $$

-- :: function_lease
-- The fields of the record Lease, in its order, all as text: a third of what building a JSON object would cost. Of the
-- arguments only the length: they travel as they are, one behind the other (`bodies`).
CREATE OR REPLACE FUNCTION holdfast.lease(j holdfast.jobs) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY[j.id, j.token, j.fence::text, j.task, j.queue, octet_length(j.args)::text, j.priority::text, j.grp, j.key,
        (least(j.attempts, 2147483646) + 1)::text, j.failures::text, j.stalls::text, j.max_stalls::text, j.created_at::text,
        j.started_at::text, encode(j.options, 'base64'), j.suspect::text, j.shared_stalls::text]
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
    OUT taken holdfast.taken, OUT floors jsonb) LANGUAGE plpgsql AS $$
DECLARE
    most integer := (request ->> 'most')::integer;
    number bigint := (request ->> 'call')::bigint;
    share integer := (request ->> 'most_by_group')::integer;
    before jsonb := '{}';  -- how many more of each task apart may start
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
        IF got.is_full IS NOT FALSE THEN  -- it is not that simple, or not all of them fit
            shared := holdfast.claim_shares(named, room, request, nonce, b.job_limit IS NOT NULL, b.rated IS TRUE,
                                            pending, taken.leases IS NULL, free, at, given, rooms, floors);
            rooms := shared.rooms;
            floors := shared.floors;
            got := shared.got;
        END IF;
        IF taken.leases IS NULL THEN taken := got; ELSE taken := holdfast.taken_with(taken, got); END IF;
        free := free - coalesce(octet_length(got.bodies), 0);
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
END $$
