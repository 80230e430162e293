-- chains: consecutive jobs of a strict group that one claim leases together.

-- == chain: lease jobs of strict groups together with those that wait behind them (R81). Takes a claim's jobs and the
-- bytes that are free. Returns the leases behind them.
-- Concurrency: the job in front keeps its group full, so nobody else makes a waiting job of it ready. A row that another
-- session has locked, for example to edit it, ends its chain: the rows behind it must not overtake it.

-- :: fragment like_front(j)
-- Whether a job may be in a chain, as far as its own row tells.
NOT @j.suspect AND @j.max_stalls > 0

-- :: fragment ordinal(j)
-- The order of a job, for comparison: formulas.place.
coalesce(@j.ordinal, -9223372036854775808)

-- :: function_chain
CREATE OR REPLACE FUNCTION holdfast.chain(taken holdfast.taken, request jsonb, nonce text, free bigint,
    at double precision) RETURNS holdfast.taken LANGUAGE plpgsql AS $$
DECLARE
    claimer text := request ->> 'worker';
    number bigint := (request ->> 'call')::bigint;
    rest integer := (request ->> 'chained_max')::integer;
    followed bigint[];
    fronts holdfast.jobs[];
    front holdfast.jobs;
    seqs bigint[] := '{}';
    starts double precision[] := '{}';  -- when the leases before them began: a chain begins at one instant
    more record;
    got holdfast.taken;
BEGIN
    IF EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at) THEN RETURN NULL; END IF;
    followed := ARRAY(  -- fronts with a job behind them: all else is judged only if there are any
        SELECT s.seq FROM generate_subscripts(taken.leases, 1) n CROSS JOIN LATERAL (
            SELECT c.seq FROM holdfast.jobs c
            WHERE c.state = 'waiting' AND c.queue = taken.leases[n][5] AND c.grp = taken.leases[n][8]
            ORDER BY @group_order(c) LIMIT 1) w
        CROSS JOIN LATERAL (SELECT split_part(taken.leases[n][2], '.', 1)::bigint AS seq) s);
    IF followed = '{}' THEN RETURN NULL; END IF;
    fronts := ARRAY(
        SELECT j FROM generate_subscripts(taken.leases, 1) n CROSS JOIN LATERAL (
            SELECT * FROM holdfast.jobs s  -- OFFSET: one lookup by primary key each, before anything is judged
            WHERE s.seq = split_part(taken.leases[n][2], '.', 1)::bigint OFFSET 0) j
        WHERE j.grp IS NOT NULL AND (request -> 'chain_by_queue' ->> j.queue)::integer > 1 AND @like_front(j)
          AND @lane_in_bulk(j.task, j.grp) = 1 AND holdfast.is_strict(j.queue, j.grp)
          AND NOT EXISTS (SELECT FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = j.queue
                          AND (b.job_limit IS NOT NULL OR (b.rate).count IS NOT NULL))
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = j.queue AND q.order_window IS NOT NULL)
          AND NOT EXISTS (SELECT FROM holdfast.limits(ARRAY[ROW(j.queue, j.grp)::holdfast.place]) g
                          WHERE (g.rate).count IS NOT NULL)
        ORDER BY j.fence);
    FOR n IN 1 .. cardinality(fronts) LOOP
        front := fronts[n];
        CONTINUE WHEN front.seq <> ALL (followed);
        more := holdfast.behind(front, least((request -> 'chain_by_queue' ->> front.queue)::integer - 1,
            ceil(rest::numeric / (cardinality(fronts) - n + 1))::integer), free, at);
        seqs := seqs || more.seqs;
        starts := starts || array_fill(front.started_at, ARRAY[cardinality(more.seqs)]);
        rest := rest - cardinality(more.seqs);
        free := free - more.bytes;
        EXIT WHEN more.is_full;
    END LOOP;
    IF seqs = '{}' THEN RETURN NULL; END IF;
    WITH numbered AS MATERIALIZED (
        SELECT o.seq, o.started_at, nextval('holdfast.ticks') AS fence
        FROM (SELECT * FROM unnest(seqs, starts) WITH ORDINALITY s(seq, started_at, n) ORDER BY s.n) o
    ), leased AS (
        UPDATE holdfast.jobs j
        SET state = 'running', @leased(n.started_at, false)
        FROM numbered n WHERE j.seq = n.seq
        RETURNING j.fence, holdfast.lease(j) AS lease, j.args
    )
    SELECT array_agg(t.lease), string_agg(t.args, ''), false INTO got
    FROM (SELECT * FROM leased ORDER BY leased.fence) t;
    RETURN got;
END $$

-- :: function_behind
-- The next jobs of a job's group, up to the first that may not be chained; they are locked.
CREATE OR REPLACE FUNCTION holdfast.behind(front holdfast.jobs, most integer, free bigint, at double precision,
    OUT seqs bigint[], OUT bytes bigint, OUT is_full boolean) LANGUAGE plpgsql AS $$
BEGIN
    WITH lined AS MATERIALIZED (
        SELECT l.seq, l.n FROM unnest(ARRAY(
            SELECT c.seq FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = front.queue AND c.grp = front.grp
            ORDER BY @group_order(c) LIMIT greatest(0, most))) WITH ORDINALITY l(seq, n)
    ), locked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT l.n, @ordinal(j) AS ordinal, octet_length(j.args) AS size,
               @like_front(j) AND j.priority = front.priority AND j.grp = front.grp
               AND @lane_in_bulk(j.task, j.grp) = 1 AND (j.expires_at IS NULL OR j.expires_at > at) AS fits
        FROM lined l JOIN holdfast.jobs j ON j.seq = l.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), judged AS (
        SELECT l.n, l.seq, coalesce(k.fits, false) AND (k.ordinal, l.seq) > (
                   lag(k.ordinal, 1, @ordinal(front)) OVER by_place, lag(l.seq, 1, front.seq) OVER by_place) AS fits,
               sum(k.size) OVER by_place AS bytes
        FROM lined l LEFT JOIN locked k ON k.n = l.n WINDOW by_place AS (ORDER BY l.n)
    ), chosen AS (
        SELECT o.n, o.seq, o.bytes, o.bytes <= free AS goes
        FROM (SELECT o.*, bool_and(o.fits) OVER (ORDER BY o.n) AS up_to FROM judged o) o WHERE o.up_to
    )
    SELECT coalesce(array_agg(c.seq ORDER BY c.n) FILTER (WHERE c.goes), '{}'),
           coalesce(max(c.bytes) FILTER (WHERE c.goes), 0), coalesce(bool_or(NOT c.goes), false)
    INTO seqs, bytes, is_full FROM chosen c;
END $$
