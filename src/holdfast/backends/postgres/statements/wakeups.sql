-- wakeups: whether there may be work for an idle worker.

-- == wait_for_work: whether a claim would lease something now, else when that may change by itself. Also
-- when a claim's queues open again, and which queues to wake when leases end. Takes queues, returns seconds or names.
-- Read-only; every result is a hint.

-- :: call
SELECT seconds, held_back FROM holdfast.work_in(%(queues)s::text[], %(floors)s::jsonb)

-- :: function_work_in
-- Seconds until there may be work in these queues: 0 now, NULL if none is due at a known time. And whether a limit, a
-- rate or a slow-down holds back ready jobs. `floors`: see floors.sql.
CREATE OR REPLACE FUNCTION holdfast.work_in(asked text[], floors jsonb DEFAULT NULL, OUT seconds double precision, OUT held_back boolean)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE at double precision := holdfast.store_now(NULL);
BEGIN
    asked := ARRAY(SELECT q.name FROM unnest(asked) q(name) WHERE NOT EXISTS (
        SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'queue' AND p.queue = q.name));
    held_back := EXISTS (SELECT 1 FROM unnest(asked) q(name) WHERE holdfast.has_ready(q.name, floors));
    IF held_back THEN
        IF EXISTS (SELECT 1 FROM unnest(asked) q(name) WHERE holdfast.claimable(q.name, at, floors)) THEN
            seconds := 0;
            held_back := false;
            RETURN;
        END IF;
    END IF;
    seconds := least((SELECT min(due_at) FROM holdfast.jobs WHERE state = 'scheduled'),
                     (SELECT min(wakes_at) FROM holdfast.flows WHERE wakes_at IS NOT NULL),
                     holdfast.opens(asked, at)) - at;
END $$

-- :: function_claimable
CREATE OR REPLACE FUNCTION holdfast.claimable(named text, at double precision, floors jsonb DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'queue' AND p.queue = named)
       OR NOT holdfast.has_ready(named, floors) THEN RETURN false; END IF;
    IF holdfast.queue_room(named, at) <= 0 THEN RETURN false; END IF;
    RETURN holdfast.has_common(named, floors)
        OR EXISTS (SELECT 1 FROM holdfast.bounds b WHERE b.kind = 'task' AND CASE
                   WHEN holdfast.has_lane(ARRAY[named], b.lane) THEN holdfast.task_room(b.name, at) > 0 END);
END $$

-- :: function_has_ready
CREATE OR REPLACE FUNCTION holdfast.has_ready(named text, floors jsonb DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- parked jobs do not count
    RETURN holdfast.has_common(named, floors)
        OR EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = named AND j.lane > 2);
END $$

-- :: function_has_common
CREATE OR REPLACE FUNCTION holdfast.has_common(named text, floors jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- ready jobs outside the tasks' own lanes
    IF floors IS NULL THEN
        RETURN EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = named AND j.lane < 2);
    END IF;
    RETURN holdfast.has_ready_behind(named, 0::smallint, floors #> ARRAY['queues', named, '0'])
        OR holdfast.has_ready_behind(named, 1::smallint, floors #> ARRAY['queues', named, '1']);
END $$

-- :: function_opens
-- When the first of the rates and slow-downs that hold back ready jobs of these queues lets another one start.
CREATE OR REPLACE FUNCTION holdfast.opens(asked text[], at double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM holdfast.flows WHERE kind <> 'group') THEN RETURN NULL; END IF;
    RETURN (
        WITH served AS MATERIALIZED (
            SELECT q.name FROM unnest(asked) q(name) WHERE holdfast.has_ready(q.name) AND NOT EXISTS (
                SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'queue' AND p.queue = q.name)
        ), held AS (
            SELECT f.shut_until, f.spent_until, b.rate FROM holdfast.flows f
            LEFT JOIN holdfast.bounds b ON b.kind = f.kind AND b.name = CASE f.kind WHEN 'queue' THEN f.queue ELSE f.name END
            WHERE CASE f.kind WHEN 'queue' THEN f.queue IN (SELECT name FROM served)
                  WHEN 'task' THEN b.name IS NOT NULL AND holdfast.has_lane(ARRAY(SELECT name FROM served), b.lane) END
        ), until AS (
            SELECT greatest(h.shut_until, CASE WHEN (h.rate).count IS NOT NULL THEN
                       CASE WHEN holdfast.allowed(h.rate, h.spent_until, at) = 0
                            THEN holdfast.opens_at(h.rate, h.spent_until) END END) AS opens
            FROM held h)
        SELECT min(opens) FROM until WHERE opens > at);
END $$

-- :: function_stirred
-- The queues in which the end of these leases lets a job start that was held back by a limit.
CREATE OR REPLACE FUNCTION holdfast.stirred(named bigint[], at double precision) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    queues text[];
    tasks text[];
    lanes smallint[];
BEGIN
    SELECT array_agg(DISTINCT j.queue), array_agg(DISTINCT j.task) INTO queues, tasks
    FROM unnest(named) n(seq) JOIN holdfast.jobs j ON j.seq = n.seq;
    lanes := ARRAY(SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = ANY (tasks)
                   AND b.job_limit IS NOT NULL AND holdfast.task_room(b.name, at) > 0);
    queues := ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = ANY (queues)
                    AND b.job_limit IS NOT NULL);
    IF lanes <> '{}' THEN queues := queues || holdfast.queues_with(lanes); END IF;
    RETURN ARRAY(SELECT DISTINCT q.name FROM unnest(queues) q(name) WHERE holdfast.claimable(q.name, at));
END $$

-- :: function_queues_with
CREATE OR REPLACE FUNCTION holdfast.queues_with(lanes smallint[]) RETURNS text[] LANGUAGE sql STABLE AS $$
    -- Skips from queue to queue through the index: each may have a million jobs.
    WITH RECURSIVE q(name) AS (
        (SELECT queue FROM holdfast.jobs WHERE state = 'ready' ORDER BY queue LIMIT 1)
        UNION ALL
        SELECT (SELECT j.queue FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue > q.name
                ORDER BY j.queue LIMIT 1) FROM q WHERE q.name IS NOT NULL)
    SELECT ARRAY(SELECT q.name FROM q WHERE q.name IS NOT NULL
                 AND EXISTS (SELECT 1 FROM unnest(lanes) l(number) WHERE holdfast.has_lane(ARRAY[q.name], l.number)))
$$
