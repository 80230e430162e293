-- lanes: how a claim shares its room among the lanes of a queue where there are more than two of them, where a worker
-- takes no more than so many of a group, or where groups have rates. (The common case is claim_lanes in claim.sql.)
-- Safe against a rival: rows are locked with SKIP LOCKED as they are found. Where groups have rates a job is taken only
-- if its group's lock is free at this moment: whoever writes a group's bucket holds it, so nobody waits for a bucket.

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
    way text[];  -- to the lane's floors
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
            free := free - coalesce(octet_length(more.bodies), 0);
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
-- `sweep` is given while something is still to be rearranged, and says how much of it may be done here.
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
-- Of these jobs, in their order, up to `wanted` whose group this worker holds less than its share of; at most 64 others
-- (GROUP_LOOKS_MAX) are passed over, those of an earlier round counted.
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
        SELECT l.seq, nextval('holdfast.ticks') AS fence FROM lined l WHERE l.bytes <= free OR opening AND l.n = 1
    ), taken AS (
        UPDATE holdfast.jobs j
        SET state = 'running', fence = n.fence, token = j.seq || '.' || to_hex(n.fence) || '.' || nonce
                || CASE WHEN j.grp IS NULL THEN '' ELSE 'g' END, worker = claimer,
            claim_call = number, started_at = at, begun = false, limited = caps,
            holds_key = j.holds_key AND NOT (j.key_until_started AND j.key_window IS NULL)
        FROM numbered n WHERE j.seq = n.seq
        RETURNING j.fence, holdfast.lease(j) AS lease, j.args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''), cardinality(seqs) > count(*) INTO got
    FROM (SELECT * FROM taken ORDER BY taken.fence) t;
    RETURN got;
END $$
