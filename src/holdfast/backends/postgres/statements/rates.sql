-- rates: rate limiting of starts by GCRA, room left by limits and rates, and slow-downs.

-- == rate: the GCRA arithmetic, identical to rates.py: the same operations in the same order on doubles.
-- Takes a rate that is in force and the bucket's theoretical arrival time (spent_until). Pure; whoever writes
-- spent_until holds the lock of its queue, task or group.

-- :: function_makes_sense
-- A rate written by another program may be anything; an invalid one restricts nothing, and `flaws` lists it.
CREATE OR REPLACE FUNCTION holdfast.makes_sense(r holdfast.rate) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((r).count > 0 AND (r).seconds > 0 AND (r).seconds < 'Infinity' AND ((r).burst IS NULL OR (r).burst > 0), false)
$$

-- :: function_every
CREATE OR REPLACE FUNCTION holdfast.every(r holdfast.rate) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT holdfast.makes_sense(r) THEN 0 WHEN (r).burst IS NULL
                THEN (r).seconds * (1.0::double precision + 0.01::double precision) / (r).count
                ELSE (r).seconds / (r).count END
$$

-- :: function_slack
CREATE OR REPLACE FUNCTION holdfast.slack(r holdfast.rate) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT holdfast.makes_sense(r) THEN 0 WHEN (r).burst IS NULL THEN (r).seconds * 0.01::double precision
                ELSE ((r).burst - 1) * (r).seconds / (r).count END
$$

-- :: function_bounded
CREATE OR REPLACE FUNCTION holdfast.bounded(r holdfast.rate, spent double precision, at double precision)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE empty double precision := at + holdfast.slack(r) + holdfast.every(r);
BEGIN
    RETURN CASE WHEN spent > empty + holdfast.every(r) THEN empty ELSE spent END;
END $$

-- :: function_allowed
CREATE OR REPLACE FUNCTION holdfast.allowed(r holdfast.rate, spent double precision, at double precision)
RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE room double precision := holdfast.slack(r) + 0.000001::double precision - greatest(spent - at, 0);
BEGIN
    RETURN CASE WHEN NOT holdfast.makes_sense(r) THEN 1000000000 WHEN room < 0 THEN 0 ELSE floor(room / holdfast.every(r))::integer + 1 END;
END $$

-- :: function_charged
CREATE OR REPLACE FUNCTION holdfast.charged(r holdfast.rate, spent double precision, at double precision,
                                            starts integer) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(spent, at) + starts * holdfast.every(r)
$$

-- :: function_opens_at
CREATE OR REPLACE FUNCTION holdfast.opens_at(r holdfast.rate, spent double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT spent - holdfast.slack(r)
$$

-- :: function_in_force
-- The operator's rate, else the declared one; NULL if that is UNLIMITED, which lifts every rate.
CREATE OR REPLACE FUNCTION holdfast.in_force(said holdfast.rate, declared holdfast.rate)
RETURNS holdfast.rate LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (coalesce(said, declared)).count < 1000000000 THEN coalesce(said, declared) END
$$

-- == allow: how many more jobs of a queue or a task may start now, and charging their starts to the rates.
-- Concurrency: whoever leases jobs of a queue or task with a limit or a rate locks its name first, then reads in a
-- later statement with its own snapshot; two claims never exceed a limit together. Names are locked by advisory
-- transaction locks on 1024 stripes, in order, at the very start of a claim and before keys and groups. Names found
-- later are only locked if the lock is free. The end of a lease frees a place and needs no lock.

-- :: function_flow_stripe
CREATE OR REPLACE FUNCTION holdfast.flow_stripe(kind text, name text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtext(kind || '/' || name) & 1023
$$

-- :: function_lock_flows
CREATE OR REPLACE FUNCTION holdfast.lock_flows(asked text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- those of the requested queues, and of tasks that have ready jobs in them
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.flows'), s.stripe)
    FROM (SELECT DISTINCT holdfast.flow_stripe(b.kind, b.name) AS stripe FROM holdfast.bounds b
          WHERE (b.job_limit IS NOT NULL OR (b.rate).count IS NOT NULL)
            AND CASE b.kind WHEN 'queue' THEN b.name = ANY (asked) ELSE holdfast.has_lane(asked, b.lane) END
          ORDER BY 1) s;
END $$

-- :: function_tasks_bound
CREATE OR REPLACE FUNCTION holdfast.tasks_bound(request jsonb, claims boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- whether a job that counts against a limit may end now, or a claimed queue has ready jobs in a task's lane
    RETURN EXISTS (SELECT FROM holdfast.jobs WHERE state = 'running' AND limited)
        OR claims AND EXISTS (SELECT FROM jsonb_array_elements_text(request -> 'queues') q(name)
                              WHERE holdfast.has_lanes(q.name));
END $$

-- :: function_has_lanes
CREATE OR REPLACE FUNCTION holdfast.has_lanes(named text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- whether this queue has ready jobs of any task with its own lane
    RETURN EXISTS (SELECT FROM holdfast.jobs WHERE state = 'ready' AND queue = named AND lane > 2);
END $$

-- :: function_has_lane
CREATE OR REPLACE FUNCTION holdfast.has_lane(asked text[], number smallint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- whether any of these queues has ready jobs in this task lane
    RETURN EXISTS (SELECT 1 FROM unnest(asked) q(name) CROSS JOIN LATERAL (
        SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = q.name AND j.lane = number LIMIT 1) x);
END $$

-- :: function_queue_room
CREATE OR REPLACE FUNCTION holdfast.queue_room(named text, at double precision) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    b holdfast.bounds;
    f holdfast.flows;
    room integer := 1000000000;
BEGIN
    SELECT * INTO f FROM holdfast.flows WHERE kind = 'queue' AND queue = named AND name = '';
    IF f.shut_until > at THEN RETURN 0; END IF;
    SELECT * INTO b FROM holdfast.bounds WHERE kind = 'queue' AND name = named;
    IF b.job_limit IS NOT NULL THEN
        room := b.job_limit - (SELECT count(*) FROM holdfast.jobs WHERE state = 'running' AND limited AND queue = named);
    END IF;
    IF (b.rate).count IS NULL THEN RETURN room; END IF;
    RETURN least(room, holdfast.allowed(b.rate, coalesce(f.spent_until, 0), at));
END $$

-- :: function_task_room
CREATE OR REPLACE FUNCTION holdfast.task_room(named text, at double precision) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    b holdfast.bounds;
    spent double precision;
    room integer := 1000000000;
BEGIN
    SELECT * INTO b FROM holdfast.bounds WHERE kind = 'task' AND name = named;
    IF b.job_limit IS NOT NULL THEN
        room := b.job_limit - (SELECT count(*) FROM holdfast.jobs WHERE state = 'running' AND limited AND task = named);
    END IF;
    IF (b.rate).count IS NULL THEN RETURN room; END IF;
    SELECT spent_until INTO spent FROM holdfast.flows WHERE kind = 'task' AND queue = '' AND name = named;
    RETURN least(room, holdfast.allowed(b.rate, coalesce(spent, 0), at));
END $$

-- :: function_task_rooms
-- The tasks with their own lane that have ready jobs in this queue, except those already known, and how many more of
-- each may start: {"task": room}.
CREATE OR REPLACE FUNCTION holdfast.task_rooms(named text, known jsonb, request jsonb, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE names text[];
BEGIN
    names := ARRAY(
        SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'task' AND CASE
            WHEN known ? b.name OR NOT holdfast.has_lane(ARRAY[named], b.lane) THEN false
            WHEN EXISTS (SELECT 1 FROM holdfast.pauses p WHERE p.kind = 'task' AND p.queue = '' AND p.name = b.name)
            THEN false  -- its jobs have not been parked yet
            WHEN b.job_limit IS NULL AND (b.rate).count IS NULL THEN true
            ELSE pg_try_advisory_xact_lock(hashtext('holdfast.flows'), holdfast.flow_stripe('task', b.name)) END);
    IF names = '{}' THEN RETURN '{}'; END IF;
    PERFORM holdfast.set_back('task', names, at);
    RETURN (SELECT jsonb_object_agg(t.name, least(holdfast.task_room(t.name, at),
        (request -> 'most_by_task' ->> t.name)::integer)) FROM unnest(names) t(name));
END $$

-- :: function_set_back
CREATE OR REPLACE FUNCTION holdfast.set_back(what text, names text[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- lowers spent_until that is further ahead than the current rate could have brought it
    UPDATE holdfast.flows f SET spent_until = holdfast.bounded(b.rate, f.spent_until, at)
    FROM unnest(names) n(name) JOIN holdfast.bounds b ON b.kind = what AND b.name = n.name
    WHERE f.kind = what AND f.queue = CASE what WHEN 'queue' THEN n.name ELSE '' END
      AND f.name = CASE what WHEN 'queue' THEN '' ELSE n.name END
      AND (b.rate).count IS NOT NULL AND holdfast.bounded(b.rate, f.spent_until, at) <> f.spent_until;
END $$

-- :: function_charge
CREATE OR REPLACE FUNCTION holdfast.charge(what text, named text, starts integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- to a queue or a task, once per claim; a no-op if no rate is in force
    INSERT INTO holdfast.flows AS f (kind, queue, name, spent_until)
    SELECT what, CASE what WHEN 'queue' THEN named ELSE '' END, CASE what WHEN 'queue' THEN '' ELSE named END,
           holdfast.charged(b.rate, 0, at, starts)
    FROM holdfast.bounds b WHERE b.kind = what AND b.name = named AND (b.rate).count IS NOT NULL AND starts > 0
    ON CONFLICT (kind, queue, name) DO UPDATE SET spent_until = (
        SELECT holdfast.charged(b.rate, f.spent_until, at, starts) FROM holdfast.bounds b
        WHERE b.kind = what AND b.name = named);
END $$

-- == slow_down: no job of a queue starts for N seconds. Takes the queue and the seconds, returns the time it ends.
-- Concurrency: one write that keeps the later of two times. A claim in progress may still lease the jobs it has found.

-- :: call
SELECT holdfast.slow_down(%(queue)s, %(seconds)s, %(now)s)

-- :: function_slow_down
CREATE OR REPLACE FUNCTION holdfast.slow_down(named text, seconds double precision, given double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    until double precision;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    INSERT INTO holdfast.flows AS f (kind, queue, shut_until) VALUES ('queue', named, at + seconds)
    ON CONFLICT (kind, queue, name) DO UPDATE SET shut_until = greatest(f.shut_until, excluded.shut_until)
    RETURNING shut_until INTO until;
    RETURN until;
END $$
