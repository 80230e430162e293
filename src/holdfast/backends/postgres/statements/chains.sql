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
    fronts record;
    dealt record;
    got holdfast.taken;
BEGIN
    IF EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at) THEN RETURN NULL; END IF;
    fronts := holdfast.fronts(taken.leases, request -> 'chain_by_queue');
    IF fronts.seqs IS NULL THEN RETURN NULL; END IF;
    dealt := holdfast.dealt(fronts, (request ->> 'chained_max')::integer, free, at);
    IF dealt.seqs IS NULL THEN RETURN NULL; END IF;
    WITH numbered AS MATERIALIZED (
        SELECT o.seq, o.started_at, nextval('holdfast.ticks') AS fence
        FROM (SELECT * FROM unnest(dealt.seqs, dealt.starts) WITH ORDINALITY s(seq, started_at, n) ORDER BY s.n) o
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

-- :: function_fronts
-- The leased jobs that may have others behind them, in order, by column, with how many at most; and which of them have
-- any. NULL if none has. Most claims end with the first statement: so it reads no jobs but those that wait.
CREATE OR REPLACE FUNCTION holdfast.fronts(leases text[], by_queue jsonb, OUT seqs bigint[], OUT queues text[],
    OUT grps text[], OUT priorities integer[], OUT ordinals bigint[], OUT starts double precision[], OUT mosts integer[],
    OUT followed boolean[]) LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint[] := ARRAY(
        SELECT split_part(l.token, '.', 1)::bigint
        FROM ROWS FROM (unnest(leases[:][2:2]), unnest(leases[:][5:5]), unnest(leases[:][8:8])) l(token, queue, grp)
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = l.queue AND c.grp = l.grp
            ORDER BY @group_order(c) LIMIT 1) w);
    rated boolean := EXISTS (SELECT FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.rated);
BEGIN
    IF ahead = '{}' THEN RETURN; END IF;
    WITH chained AS MATERIALIZED (
        SELECT c.key AS queue, c.value::integer - 1 AS most FROM jsonb_each_text(by_queue) c
        WHERE c.value::integer > 1
          AND NOT EXISTS (SELECT FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = c.key
                          AND (b.job_limit IS NOT NULL OR (b.rate).count IS NOT NULL))
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = c.key AND q.order_window IS NOT NULL)
    ), judged AS (
        SELECT j.seq, j.queue, j.grp, j.priority, @ordinal(j) AS ordinal, j.started_at, j.fence, c.most
        FROM unnest(leases[:][2:2]) t(token) CROSS JOIN LATERAL (
            SELECT * FROM holdfast.jobs s  -- OFFSET: one lookup by primary key each, before anything is judged
            WHERE s.seq = split_part(t.token, '.', 1)::bigint OFFSET 0) j
        JOIN chained c ON c.queue = j.queue
        WHERE j.grp IS NOT NULL AND @like_front(j) AND @lane_in_bulk(j.task, j.grp) = 1
          AND holdfast.is_strict(j.queue, j.grp)
          AND CASE WHEN rated THEN NOT EXISTS (SELECT FROM holdfast.limits(ARRAY[ROW(j.queue, j.grp)::holdfast.place]) g
                                               WHERE (g.rate).count IS NOT NULL) ELSE true END
    )
    SELECT array_agg(o.seq), array_agg(o.queue), array_agg(o.grp), array_agg(o.priority), array_agg(o.ordinal),
           array_agg(o.started_at), array_agg(o.most), array_agg(o.seq = ANY (ahead))
    INTO seqs, queues, grps, priorities, ordinals, starts, mosts, followed
    FROM (SELECT * FROM judged j ORDER BY j.fence) o;
END $$

-- :: function_dealt
-- Deals the room front by front: each gets an even share of what is left. All is read in one statement first, as if each
-- front could use its share. Where one cannot, the next ones get more, and what is missing there is read front by front.
CREATE OR REPLACE FUNCTION holdfast.dealt(fronts record, rest integer, free bigint, at double precision,
    OUT seqs bigint[], OUT starts double precision[]) LANGUAGE plpgsql AS $$
DECLARE
    total integer := cardinality(fronts.seqs);
    shares integer[] := array_fill(0, ARRAY[total]);
    left_over integer := rest;
    share integer;
    lined record;  -- what is behind all fronts, by column
    more record;  -- what is behind one of them
    place integer := 1;
    first integer;
BEGIN
    FOR n IN 1 .. total LOOP
        CONTINUE WHEN NOT fronts.followed[n];
        shares[n] := least(fronts.mosts[n], (left_over + total - n) / (total - n + 1));
        left_over := left_over - shares[n];
    END LOOP;
    lined := holdfast.behind(fronts, shares, at);
    FOR n IN 1 .. total LOOP
        CONTINUE WHEN NOT fronts.followed[n];
        first := place;
        WHILE lined.numbers[place] = n LOOP place := place + 1; END LOOP;
        more := lined;
        share := least(fronts.mosts[n], (rest + total - n) / (total - n + 1));
        IF share > shares[n] AND place - first = shares[n] THEN
            more := holdfast.behind(fronts, array_fill(0, ARRAY[n - 1]) || share, at);
            first := 1;
        END IF;
        FOR m IN first .. first + share - 1 LOOP
            EXIT WHEN more.numbers[m] IS DISTINCT FROM n;
            free := free - more.sizes[m];
            IF free < 0 THEN RETURN; END IF;
            seqs := seqs || more.seqs[m];
            starts := starts || fronts.starts[n];  -- a chain begins at one instant
            rest := rest - 1;
        END LOOP;
    END LOOP;
END $$

-- :: function_behind
-- The next jobs of each front's group, no more than its share, up to the first that may not be chained, by column; they
-- are locked.
CREATE OR REPLACE FUNCTION holdfast.behind(fronts record, shares integer[], at double precision,
    OUT numbers integer[], OUT seqs bigint[], OUT sizes integer[]) LANGUAGE plpgsql AS $$
BEGIN
    WITH lined AS MATERIALIZED (
        SELECT f.n, l.seq, l.m, f.grp, f.priority, f.seq AS front, f.ordinal
        FROM unnest(shares, fronts.seqs, fronts.queues, fronts.grps, fronts.priorities, fronts.ordinals)
             WITH ORDINALITY f(share, seq, queue, grp, priority, ordinal, n)
        CROSS JOIN LATERAL unnest(ARRAY(
            SELECT c.seq FROM holdfast.jobs c WHERE c.state = 'waiting' AND c.queue = f.queue AND c.grp = f.grp
            ORDER BY @group_order(c) LIMIT f.share)) WITH ORDINALITY l(seq, m)
        WHERE f.share > 0
    ), locked AS MATERIALIZED (  -- CASE forces a primary key lookup, as the cached plan may date from an empty store
        SELECT l.n, l.m, l.seq, l.front, l.ordinal AS front_ordinal, @ordinal(j) AS ordinal, octet_length(j.args) AS size,
               @like_front(j) AND j.priority = l.priority AND j.grp = l.grp
               AND @lane_in_bulk(j.task, j.grp) = 1 AND (j.expires_at IS NULL OR j.expires_at > at) AS fits
        FROM lined l JOIN holdfast.jobs j ON j.seq = l.seq
        WHERE CASE j.state WHEN 'waiting' THEN true END FOR UPDATE OF j SKIP LOCKED
    ), judged AS (  -- a row that was skipped leaves a gap
        SELECT k.n, k.m, k.seq, k.size, k.fits AND k.m = row_number() OVER by_place AND (k.ordinal, k.seq) > (
                   lag(k.ordinal, 1, k.front_ordinal) OVER by_place, lag(k.seq, 1, k.front) OVER by_place) AS fits
        FROM locked k WINDOW by_place AS (PARTITION BY k.n ORDER BY k.m)
    ), chosen AS (
        SELECT o.n, o.m, o.seq, o.size, bool_and(o.fits) OVER (PARTITION BY o.n ORDER BY o.m) AS up_to FROM judged o
    )
    SELECT array_agg(c.n ORDER BY c.n, c.m), array_agg(c.seq ORDER BY c.n, c.m), array_agg(c.size ORDER BY c.n, c.m)
    INTO numbers, seqs, sizes FROM chosen c WHERE c.up_to;
END $$
