-- exchange: settle and claim in one call, the one workers make most.

-- == exchange: settle, release and claim in one step and one round trip; a repeated call returns the first result.
-- Locks the worker's `calls` row first, so a repeat waits for the first call to end; then the queues and tasks that
-- have a limit or a rate (rates.sql). All groups any part may touch are collected and locked once, in order (or in
-- shared mode, see groups.sql); work found later in a group that is not locked is left to the next call.
-- Returns the result as JSON, and the arguments of all leases as bytes, concatenated in the order of the leases: NULL if
-- they are many bytes. The caller then reads them as rows: each variable and result of a function copies what it holds,
-- and one value of megabytes costs seven times as much as the same bytes in rows.

-- :: call
SELECT answer::text, bodies FROM holdfast.exchange(%(successes)s::jsonb, %(settlements)s::jsonb, %(releases)s::jsonb,
                                                   %(request)s::jsonb, %(nonce)s, %(careful)s, %(now)s)

-- :: bodies
-- Arguments of leases that came without them. The claim is committed; a job's arguments do not change while it runs.
SELECT seq, args FROM holdfast.jobs WHERE seq = ANY (%(seqs)s::bigint[])

-- :: fragment lock_caller
-- Locks the worker and its last call until commit: nobody can remove the worker while it receives leases. A repeated
-- call ends here. Renewals do not wait for this.
IF request IS NOT NULL THEN
    -- Locked until commit: nobody can remove the worker while it receives leases. Renewals do not wait for this.
    IF floors IS NOT NULL THEN
        SELECT c.* INTO last FROM holdfast.calls c JOIN holdfast.workers w ON w.id = c.worker
        WHERE c.ctid = (floors ->> 'call')::tid AND c.worker = claimer FOR KEY SHARE OF w FOR UPDATE OF c;
        known := FOUND;
    END IF;
    IF known IS NOT TRUE THEN
        SELECT c.* INTO last FROM holdfast.workers w JOIN holdfast.calls c ON c.worker = w.id
        WHERE w.id = claimer FOR KEY SHARE OF w FOR UPDATE OF c;
        known := FOUND;
    END IF;
    IF known AND number = last.last_call THEN
        SELECT f.answer, f.bodies INTO answer, bodies FROM holdfast.first_answer(last, request, at) f;
        RETURN;
    END IF;
END IF;

-- :: fragment find_conditions
-- Reads the rare conditions, and whether this call may claim.
SELECT EXISTS (SELECT FROM holdfast.bounds WHERE kind = 'queue'),
       EXISTS (SELECT FROM holdfast.bounds WHERE kind = 'task'), EXISTS (SELECT FROM holdfast.flows),
       EXISTS (SELECT FROM holdfast.rearranging),
       EXISTS (SELECT FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)  -- same test as any_due
       OR EXISTS (SELECT FROM holdfast.jobs WHERE expires_at <= at AND expires_at IS NOT NULL
                  AND state IN ('scheduled', 'waiting', 'ready'))
       OR EXISTS (SELECT FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL)
       OR EXISTS (SELECT FROM holdfast.propagating),
       EXISTS (SELECT FROM holdfast.edges),
       EXISTS (SELECT FROM holdfast.workers WHERE deadline <= at),
       ARRAY(SELECT p.queue FROM holdfast.pauses p WHERE p.kind = 'queue'),
       (SELECT record FROM holdfast.seal WHERE closed), t.last_value, i.timeline, greatest(0, i.quiet_until - at)
INTO bounded, apart, flowing, pending, due, linked, stalls, paused, seal, tick, line, quiet
FROM holdfast.ticks t LEFT JOIN holdfast.incarnation i ON true;
IF flowing AND NOT due THEN
    due := EXISTS (SELECT FROM holdfast.flows WHERE wakes_at <= at AND wakes_at IS NOT NULL);
END IF;
IF request IS NOT NULL THEN
    IF line IS DISTINCT FROM holdfast.timeline() THEN quiet := holdfast.quiet_seconds(at); END IF;
    claims := known AND number > last.last_call AND quiet = 0;
END IF;
-- Task rules matter only if jobs of such tasks are ready, or end here and were counted.
IF apart AND NOT bounded THEN bounded := holdfast.tasks_bound(request, claims); END IF;
due := due AND claims AND holdfast.try_promote();
IF claims THEN
    IF bounded AND (request ->> 'most')::integer > 0 THEN
        PERFORM holdfast.lock_flows(ARRAY(SELECT jsonb_array_elements_text(request -> 'queues')));
    END IF;
    IF stalls THEN stalled := holdfast.stalled_workers('{}', at); END IF;
    IF due THEN PERFORM holdfast.lock_letters_due(sweep, at); END IF;
END IF;

-- :: fragment lock_places
-- Collects the groups that any part of this call may touch, and locks them once, in order.
IF others OR bounded OR careful OR linked THEN
    ending := holdfast.seqs_named(successes, settlements || releases);
END IF;
IF others OR bounded OR careful THEN
    named := holdfast.places_named(ending);
ELSIF successes ? 'queues' THEN  -- the caller knows the groups: no job is read to find them
    named := ARRAY(SELECT ROW(p.queue, p.grp)::holdfast.place
                   FROM ROWS FROM (jsonb_array_elements_text(successes -> 'queues'),
                                   jsonb_array_elements_text(successes -> 'grps')) p(queue, grp));
ELSIF successes ? 'grouped' THEN
    named := holdfast.places_ended(successes);
END IF;
places := named;
IF cardinality(stalled) > 0 THEN places := places || holdfast.places_stalled(stalled, (sweep + 1) / 2); END IF;
IF due THEN places := places || holdfast.places_due(sweep, at); END IF;
IF linked THEN places := places || holdfast.places_released(ending, stalled, sweep); END IF;
follows := claims AND named IS NOT NULL AND seal IS NULL AND stalled IS NULL
           AND NOT (bounded OR due OR others OR pending OR linked)
           AND request ->> 'most_by_group' IS NULL AND request ->> 'priorities' IS NULL;
IF follows AND NOT careful THEN swaps := holdfast.may_swap(named); END IF;
IF swaps THEN
    PERFORM holdfast.share_groups(named);
ELSIF places IS NOT NULL THEN
    PERFORM holdfast.lock_groups(places);
END IF;

-- :: fragment settle_named
-- Ends the leases that the call names, and refills their groups.
IF successes IS NOT NULL THEN answers := holdfast.settle_successes(successes, elsewhere, at); END IF;
IF settlements <> '[]' THEN answers := answers || holdfast.settle_others(settlements, elsewhere, at); END IF;
IF releases <> '[]' THEN answers := answers || holdfast.release_leases(releases, elsewhere, at); END IF;
-- Usually the claim refills these groups, because it leases the next jobs in them (claim.sql).
IF swaps THEN
    PERFORM holdfast.swap(successes, answers, named, at);
ELSIF follows THEN
    freed := named;
ELSIF named IS NOT NULL THEN
    PERFORM holdfast.refill_groups(named, at);
END IF;

-- :: fragment claim_jobs
-- Promotes what is due, continues what changed rules left to do, and claims.
IF claims AND seal IS NULL THEN
    -- A job that this very call rescheduled with no delay, or whose last parent it settled, is due, too.
    IF due OR (others OR linked) AND holdfast.any_due(flowing, at) AND holdfast.try_promote() THEN
        PERFORM holdfast.promote_due(sweep, places, at);
    END IF;
    IF pending THEN pending := holdfast.carry_on(sweep, at); END IF;
    claimed := holdfast.claim(request, paused, freed, nonce, bounded, apart, flowing, pending, at, given);
    taken := claimed.taken;
    floors := claimed.floors;
    chained := claimed.chained;
    IF bounded OR apart OR flowing THEN
        at := holdfast.store_now(given);
        opens_in := holdfast.opens(ARRAY(SELECT jsonb_array_elements_text(request -> 'queues')), at) - at;
    END IF;
END IF;

-- :: fragment stirs
-- The queues in which others may find work because of this call.
CASE WHEN bounded OR linked THEN CASE WHEN bounded THEN holdfast.stirred(ending, at) ELSE '{}' END
                                 || CASE WHEN linked THEN holdfast.released_by(ending) ELSE '{}' END END
|| holdfast.copied()

-- :: function_exchange
CREATE OR REPLACE FUNCTION holdfast.exchange(successes jsonb, settlements jsonb, releases jsonb, request jsonb, nonce text,
    careful boolean, given double precision, OUT answer json, OUT bodies bytea) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_material = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    claimer text := request ->> 'worker';
    number bigint := (request ->> 'call')::bigint;
    sweep integer := (request ->> 'sweep_max')::integer;  -- how many jobs one promote may touch
    others boolean := settlements <> '[]' OR releases <> '[]';
    known boolean;
    claims boolean := false;  -- whether this call may hand out leases
    bounded boolean;  -- whether a limit or rate is in force that may affect this call
    pending boolean;  -- whether a changed rule has not been fully applied yet (rearrange.sql)
    apart boolean;  -- whether any task has its own lane
    flowing boolean;  -- whether there is any rate state or slowed-down queue
    due boolean := false;
    stalls boolean; linked boolean;  -- linked: whether any job waits for another, or did
    quiet double precision := 0;
    tick bigint;
    line bigint;
    paused text[];
    last holdfast.calls;
    stalled text[];
    ending bigint[];  -- seqs of the jobs named; only computed if needed
    named holdfast.place[];
    follows boolean;  -- only simple successes ended, and the claim is simple, too
    swaps boolean := false;
    freed holdfast.place[];
    places holdfast.place[];
    answers text[] := '{}';
    elsewhere text[] := '{}';
    recovered jsonb := '[]';
    claimed record;
    taken holdfast.taken;
    chained integer;  -- how many of the leases, the last ones, are chained
    floors jsonb := request -> 'floors';  -- see floors.sql; usually NULL
    opens_in double precision;
    seal text;
BEGIN
    PERFORM holdfast.share_rules();
    @lock_caller;
    -- Check all the rare conditions in one query. Rules cannot change now; other changes are seen by the next call.
    @find_conditions;
    @lock_places;
    at := holdfast.store_now(given);  -- waiting for the locks may have taken a while
    IF tick < at * 1000000 THEN PERFORM holdfast.keep_up(at); END IF;
    IF careful THEN elsewhere := holdfast.held_elsewhere(ending); END IF;
    @settle_named;
    IF request IS NULL OR NOT known OR number < last.last_call THEN
        answer := json_build_object('answers', answers, 'known', coalesce(known, true),
                                    'stirred', @stirs);
        RETURN;
    END IF;
    IF cardinality(stalled) > 0 THEN
        recovered := holdfast.recover_leases(stalled, (sweep + 1) / 2, places, at);
        PERFORM 1 FROM holdfast.workers WHERE id = claimer;
        IF NOT FOUND THEN  -- this worker's own deadline had passed
            answer := json_build_object('answers', answers, 'known', false, 'recovered', recovered);
            RETURN;
        END IF;
    END IF;
    @claim_jobs;
    IF floors IS NULL THEN
        UPDATE holdfast.calls SET last_call = number, last_answers = to_jsonb(answers) WHERE worker = claimer;
    ELSE
        floors := floors || holdfast.note_call(claimer, number, answers, (floors ->> 'call')::tid);
    END IF;
    bodies := taken.bodies;
    answer := json_build_object('answers', answers, 'leases', to_json(coalesce(taken.leases, '{}')),
                                'recovered', recovered, 'sealed', seal::json, 'quiet_seconds', quiet,
                                'opens_in', opens_in, 'floors', floors, 'chained', coalesce(chained, 0),
                                'stirred', @stirs);
END $$

-- :: function_first_answer
-- The result of a repeated call. It may ask for less than the first time: leases that no longer fit are released.
CREATE OR REPLACE FUNCTION holdfast.first_answer(last holdfast.calls, request jsonb, at double precision,
                                                 OUT answer json, OUT bodies bytea) LANGUAGE plpgsql AS $$
DECLARE
    most integer := (request ->> 'most')::integer;
    chained_max integer := (request ->> 'chained_max')::integer;
    free bigint := (request ->> 'bytes_max')::bigint;
    beyond jsonb;
    leases json;
    chained integer;
BEGIN
    WITH ours AS MATERIALIZED (
        SELECT j.id, j.token, j.queue, j.grp, row_number() OVER by_fence AS n,
               sum(octet_length(j.args)) OVER by_fence AS bytes,
               j.grp IS NOT NULL AND row_number() OVER (PARTITION BY j.queue, j.grp ORDER BY j.fence) > 1
               AND holdfast.is_strict(j.queue, j.grp) AS behind
        FROM holdfast.jobs j
        WHERE j.state = 'running' AND j.worker = last.worker AND j.claim_call = last.last_call
        WINDOW by_fence AS (ORDER BY j.fence)
    ), counted AS (
        SELECT o.*, o.bytes > free AND o.n > 1 OR CASE WHEN o.behind THEN count(*) FILTER (WHERE o.behind) OVER by_n > chained_max
                    ELSE count(*) FILTER (WHERE NOT o.behind) OVER by_n > most END AS excess
        FROM ours o WINDOW by_n AS (ORDER BY o.n)
    ), judged AS (  -- behind a lease that does not fit, none does
        SELECT c.*, c.excess OR c.behind AND bool_or(c.excess) OVER (PARTITION BY c.queue, c.grp ORDER BY c.n) AS goes
        FROM counted c)
    SELECT jsonb_agg(jsonb_build_object('id', o.id, 'token', o.token, 'delay', 0) ORDER BY o.n) FILTER (WHERE o.goes),
           count(*) FILTER (WHERE o.behind AND NOT o.goes)
    INTO beyond, chained FROM judged o;
    IF beyond IS NOT NULL THEN PERFORM holdfast.release_unseen(beyond, at); END IF;
    SELECT json_agg(to_json(holdfast.lease(t.j))), string_agg((t.j).args, '') INTO leases, bodies FROM (
        SELECT j FROM holdfast.jobs j
        WHERE j.state = 'running' AND j.worker = last.worker AND j.claim_call = last.last_call
          AND (beyond IS NULL OR j.token <> ALL (ARRAY(SELECT b ->> 'token' FROM jsonb_array_elements(beyond) b)))
        ORDER BY j.fence) t;
    answer := json_build_object('answers', last.last_answers, 'leases', coalesce(leases, '[]'), 'chained', chained);
END $$

-- == named: the jobs that a call names by their leases: their seqs, their groups, and which of them another session has
-- locked. Concurrency: nothing is decided here. Ending a lease compares its token again, with the groups locked.

-- :: function_held_elsewhere
-- The tokens of those jobs that another session has locked, for example an operator at a psql prompt. Their answer is
-- `busy`, and the others proceed. Only used after an exchange failed on such a lock: the probe costs a lock per job.
CREATE OR REPLACE FUNCTION holdfast.held_elsewhere(named bigint[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (WITH ours AS MATERIALIZED (
        SELECT j.seq, j.token FROM unnest(named) n(seq) JOIN holdfast.jobs j ON j.seq = n.seq WHERE j.state = 'running'
    ), free AS MATERIALIZED (
        SELECT j.seq FROM holdfast.jobs j JOIN ours ON j.seq = ours.seq ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED)
    SELECT coalesce(array_agg(token), '{}') FROM ours WHERE seq NOT IN (SELECT seq FROM free));
END $$

-- :: function_seq_named
-- Our tokens begin with the seq of the job, so it is found even if its row in ids is missing.
CREATE OR REPLACE FUNCTION holdfast.seq_named(named text, its_token text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN its_token ~ '^[0-9]{1,18}[.]' THEN split_part(its_token, '.', 1)::bigint
                ELSE (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) END
$$

-- :: function_seqs_named
CREATE OR REPLACE FUNCTION holdfast.seqs_named(successes jsonb, others jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT split_part(t, '.', 1)::bigint FROM jsonb_array_elements_text(successes -> 'token') t)
        || ARRAY(SELECT n.seq FROM jsonb_array_elements(others) o
                 CROSS JOIN LATERAL holdfast.seq_named(o ->> 'id', o ->> 'token') n(seq) WHERE n.seq IS NOT NULL);
END $$

-- :: function_places_named
CREATE OR REPLACE FUNCTION holdfast.places_named(named bigint[]) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(ROW(g.queue, g.grp)::holdfast.place)
            FROM (SELECT DISTINCT j.queue, j.grp FROM unnest(named) n(seq) JOIN holdfast.jobs j ON j.seq = n.seq
                  WHERE j.grp IS NOT NULL) g);  -- also of a job that has ended in its caller's transaction (R90)
END $$

-- :: function_places_ended
CREATE OR REPLACE FUNCTION holdfast.places_ended(successes jsonb) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN  -- the same for successes only
    RETURN (SELECT array_agg(ROW(g.queue, g.grp)::holdfast.place)
            FROM (SELECT DISTINCT j.queue, j.grp FROM jsonb_array_elements_text(successes -> 'token') t(token)
                  JOIN holdfast.jobs j ON j.seq = split_part(t.token, '.', 1)::bigint
                  WHERE t.token LIKE '%g' AND CASE j.state WHEN 'running' THEN j.grp IS NOT NULL END) g);
END $$
