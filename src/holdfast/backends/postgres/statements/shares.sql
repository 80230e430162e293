-- shares: which ready jobs a claim takes where more than two lanes, rates or the worker's own choice matter.

-- == shares: how a claim divides its room among the lanes of a queue if there are more than two of them, if the worker
-- caps its jobs per group or takes only some priorities, or if groups have rates. (claim_lanes handles the common case.)
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
    lowest integer := (request -> 'priorities' ->> 0)::integer;
    highest integer := (request -> 'priorities' ->> 1)::integer;
    choosy boolean := share IS NOT NULL OR lowest IS NOT NULL;  -- some of the jobs found may be skipped
    ages boolean := lowest IS NOT NULL AND EXISTS (
        SELECT FROM holdfast.bounds a WHERE a.kind = 'queue' AND a.name = named AND a.aging >= 0);
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
    floored boolean := floors IS NOT NULL AND NOT (guarded OR pending OR choosy OR EXISTS (
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
                    WHEN choosy THEN 64 - looks[nth] ELSE 0 END, guarded,
                    CASE WHEN pending THEN (request ->> 'sweep_max')::integer END,
                    CASE WHEN NOT ages THEN lowest END, CASE WHEN NOT ages THEN highest END, at);
            END IF;
            IF choosy THEN
                SELECT w.fitting, w.passed INTO heads, passed FROM holdfast.chosen(
                    heads, named, request ->> 'worker', share, lowest, highest, wanted, looks[nth]) w;
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
-- `sweep` is set while a changed rule is still being applied; it limits how much of that may be done here. `low` and
-- `high` are set if only some ranks are wanted: they bound the scan, so that jobs of other priorities cost nothing.
CREATE OR REPLACE FUNCTION holdfast.lane_heads(named text, number smallint, most integer, guarded boolean, sweep integer,
    low integer, high integer, at double precision) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    IF sweep IS NOT NULL THEN RETURN holdfast.sound_heads(named, number, most, sweep, guarded, low, high, at); END IF;
    IF low IS NOT NULL THEN
        RETURN ARRAY(SELECT seq FROM holdfast.jobs
            WHERE state = 'ready' AND queue = named AND lane = number AND rank >= low AND rank <= high
              AND (expires_at IS NULL OR expires_at > at)
              AND CASE WHEN guarded AND grp IS NOT NULL THEN holdfast.try_group(queue, grp) ELSE true END
            ORDER BY rank DESC, turn, seq LIMIT most FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN ARRAY(SELECT seq FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = number AND (expires_at IS NULL OR expires_at > at)
          AND CASE WHEN guarded AND grp IS NOT NULL THEN holdfast.try_group(queue, grp) ELSE true END
        ORDER BY rank DESC, turn, seq LIMIT most FOR UPDATE SKIP LOCKED);
END $$

-- :: function_chosen
-- Of these jobs, in order, up to `wanted` of the wanted priorities in whose groups this worker is below its share. At
-- most 64 others (GROUP_LOOKS_MAX) are skipped, including those of an earlier round.
CREATE OR REPLACE FUNCTION holdfast.chosen(heads bigint[], named text, claimer text, share integer, lowest integer,
    highest integer, wanted integer, looks integer, OUT fitting bigint[], OUT passed integer) LANGUAGE sql AS $$
    WITH ours AS MATERIALIZED (
        SELECT grp, count(*) AS number FROM holdfast.jobs
        WHERE state = 'running' AND worker = claimer AND queue = named AND grp IS NOT NULL GROUP BY grp
    ), ranked AS (
        SELECT h.n, h.seq, j.grp, lowest IS NULL OR j.priority >= lowest AND j.priority <= highest AS is_wanted
        FROM unnest(heads) WITH ORDINALITY h(seq, n) JOIN holdfast.jobs j ON j.seq = h.seq
    ), judged AS (
        SELECT r.n, r.seq, r.is_wanted AND (share IS NULL OR r.grp IS NULL OR share >= coalesce(o.number, 0)
               + count(*) FILTER (WHERE r.is_wanted) OVER (PARTITION BY r.grp ORDER BY r.n)) AS fits
        FROM ranked r LEFT JOIN ours o ON o.grp = r.grp
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
