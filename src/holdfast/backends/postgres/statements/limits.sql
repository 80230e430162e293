-- limits: declared rules, operators' overrides and pauses of queues, groups and tasks.

-- == declare: store the rules of queues and tasks; the latest declaration wins.
-- Concurrency: a change takes the rules lock exclusively; every transaction that makes jobs ready or claims them holds
-- it in shared mode until it ends. So a change must be brief however many jobs it affects: at most `step` jobs or
-- groups are rearranged here, the rest piecewise (rearrange.sql).

-- :: call
SELECT holdfast.declare_rules(%(rules)s::jsonb, %(tasks)s::jsonb, %(step)s, %(now)s)

-- :: function_share_rules
CREATE OR REPLACE FUNCTION holdfast.share_rules() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared(hashtext('holdfast.rules'), 0)
$$

-- :: function_own_rules
CREATE OR REPLACE FUNCTION holdfast.own_rules() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtext('holdfast.rules'), 0)
$$

-- :: function_rules_of
CREATE OR REPLACE FUNCTION holdfast.rules_of(given jsonb) RETURNS SETOF holdfast.queues LANGUAGE sql IMMUTABLE AS $$
    SELECT r.name, CASE r.group_order WHEN 'strict' THEN 1 ELSE r.group_limit END, r.group_order, r."limit", r.rate,
           r.group_rate, r.aging, coalesce(r.on_dead, 'go_on'), r.order_window, r.dead_queue
    FROM jsonb_to_recordset(given) AS r(name text, group_limit integer, group_order text, "limit" integer,
        rate holdfast.rate, group_rate holdfast.rate, aging double precision, on_dead text,
        order_window double precision, dead_queue text)
$$

-- :: function_tasks_of
CREATE OR REPLACE FUNCTION holdfast.tasks_of(given jsonb) RETURNS SETOF holdfast.tasks LANGUAGE sql IMMUTABLE AS $$
    SELECT r.name, r."limit", r.rate, r.apart, r.retain_count, r.retain_dead, r.retain_dead_count, 0::bigint, 0::bigint
    FROM jsonb_to_recordset(given) AS r(name text, "limit" integer, rate holdfast.rate, apart boolean,
        retain_count integer, retain_dead double precision, retain_dead_count integer)
$$

-- :: function_says_nothing
CREATE OR REPLACE FUNCTION holdfast.says_nothing(t holdfast.tasks) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT t.job_limit IS NULL AND (t.rate).count IS NULL AND NOT t.apart AND t.retain_count IS NULL
       AND t.retain_dead IS NULL AND t.retain_dead_count IS NULL
$$

-- :: function_same_rule
CREATE OR REPLACE FUNCTION holdfast.same_rule(a holdfast.tasks, b holdfast.tasks) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- count_after and count_until are progress of prune, not part of the rule
    a.count_after := b.count_after;
    a.count_until := b.count_until;
    RETURN a IS NOT DISTINCT FROM b;
END $$

-- :: function_declare_rules
CREATE OR REPLACE FUNCTION holdfast.declare_rules(rules jsonb, tasks jsonb, step integer, given double precision)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision;
    rule holdfast.queues;
    before holdfast.queues;
    task holdfast.tasks;
BEGIN
    -- Every worker declares the same rules again when it starts: that must not wait for any lock.
    IF NOT EXISTS (SELECT 1 FROM holdfast.rules_of(rules) r LEFT JOIN holdfast.queues q ON q.name = r.name
                   WHERE q IS DISTINCT FROM r)
       AND NOT EXISTS (SELECT 1 FROM holdfast.tasks_of(tasks) r LEFT JOIN holdfast.tasks t ON t.name = r.name
                       WHERE CASE WHEN holdfast.says_nothing(r) THEN t.name IS NOT NULL
                                  ELSE t.name IS NULL OR NOT holdfast.same_rule(r, t) END) THEN RETURN; END IF;
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    PERFORM holdfast.keep_up(at);
    FOR task IN SELECT * FROM holdfast.tasks_of(tasks) LOOP PERFORM holdfast.declare_task(task, step); END LOOP;
    FOR rule IN SELECT * FROM holdfast.rules_of(rules) LOOP
        SELECT * INTO before FROM holdfast.queues q WHERE q.name = rule.name;
        CONTINUE WHEN before IS NOT DISTINCT FROM rule;
        DELETE FROM holdfast.queues WHERE name = rule.name;
        INSERT INTO holdfast.queues SELECT rule.*;
        PERFORM holdfast.bind_queue(rule.name);
        IF (coalesce(before.group_limit, 1), coalesce(before.group_order, 'strict'), before.group_rate)
           IS DISTINCT FROM (rule.group_limit, rule.group_order, rule.group_rate) THEN
            PERFORM holdfast.groups_changed(rule.name, step, at);
        END IF;
    END LOOP;
END $$

-- :: function_declare_task
CREATE OR REPLACE FUNCTION holdfast.declare_task(rule holdfast.tasks, step integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE before holdfast.tasks;
BEGIN
    SELECT * INTO before FROM holdfast.tasks WHERE name = rule.name;
    IF FOUND AND holdfast.same_rule(rule, before) THEN RETURN; END IF;
    DELETE FROM holdfast.tasks WHERE name = rule.name;
    IF before.retain_count IS NOT NULL THEN
        rule.count_after := before.count_after;
        rule.count_until := before.count_until;
    ELSIF rule.retain_count IS NOT NULL THEN  -- prune records jobs that finished before, piecewise
        rule.count_until := (SELECT coalesce(max(seq), 0) FROM holdfast.jobs);
    END IF;
    IF NOT holdfast.says_nothing(rule) THEN INSERT INTO holdfast.tasks SELECT rule.*; END IF;
    PERFORM holdfast.bind_task(rule.name, step);
END $$

-- == limit: store an operator's override for a queue, a group or a task; and compute what is in force (table bounds).
-- Concurrency: the rules lock is held exclusively, so nobody claims, refills or enqueues under a half-applied rule.
-- Some of the affected jobs are rearranged in the same step, the rest piecewise (rearrange.sql); until then no claim
-- leases one of them.

-- :: call
SELECT holdfast.limit_scope(%(kind)s, %(queue)s, %(name)s, %(says_limit)s, %(limit)s::integer, %(says_rate)s,
                            %(rate)s::jsonb, %(says_apart)s, %(apart)s::boolean, %(says_weight)s,
                            %(weight)s::integer, %(step)s, %(now)s)

-- :: function_limit_scope
CREATE OR REPLACE FUNCTION holdfast.limit_scope(what text, queued text, named text, says_limit boolean, most integer,
    says_rate boolean, rated jsonb, says_apart boolean, alone boolean, says_weight boolean, weighs integer,
    step integer, given double precision) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision;
    said holdfast.rate := jsonb_populate_record(NULL::holdfast.rate, rated);
BEGIN
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    IF what = 'group' AND most > 1 AND holdfast.is_strict(queued, named) THEN
        PERFORM holdfast.refuse('HF006', jsonb_build_object('queue', queued, 'limit', most));
    END IF;
    INSERT INTO holdfast.overrides AS o (kind, queue, name, job_limit, rate, apart, weight)
    VALUES (what, queued, named, most, said, alone, weighs)
    ON CONFLICT (kind, queue, name) DO UPDATE
    SET job_limit = CASE WHEN says_limit THEN excluded.job_limit ELSE o.job_limit END,
        rate = CASE WHEN says_rate THEN excluded.rate ELSE o.rate END,
        apart = CASE WHEN says_apart THEN excluded.apart ELSE o.apart END,
        weight = CASE WHEN says_weight THEN excluded.weight ELSE o.weight END;
    DELETE FROM holdfast.overrides WHERE kind = what AND queue = queued AND name = named
    AND job_limit IS NULL AND (rate).count IS NULL AND apart IS NULL AND weight IS NULL;
    IF what = 'task' THEN
        PERFORM holdfast.bind_task(named, step);
    ELSE
        PERFORM holdfast.bind_queue(queued);
    END IF;
    IF what = 'group' THEN PERFORM holdfast.fit(ARRAY[ROW(queued, named)::holdfast.place], at); END IF;
END $$

-- :: function_bind_queue
CREATE OR REPLACE FUNCTION holdfast.bind_queue(named text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    rule holdfast.queues;
    said holdfast.overrides;
    b holdfast.bounds;
BEGIN
    SELECT * INTO rule FROM holdfast.queues WHERE name = named;
    SELECT * INTO said FROM holdfast.overrides WHERE kind = 'queue' AND queue = named AND name = '';
    b.job_limit := CASE WHEN coalesce(said.job_limit, rule.job_limit) < 1000000000
                        THEN coalesce(said.job_limit, rule.job_limit) END;
    b.rate := holdfast.in_force(said.rate, rule.rate);
    b.rated := (holdfast.in_force(NULL, rule.group_rate)).count IS NOT NULL OR EXISTS (
        SELECT 1 FROM holdfast.overrides o WHERE o.kind = 'group' AND o.queue = named
        AND (holdfast.in_force(o.rate, NULL)).count IS NOT NULL);
    b.wide := rule.group_order = 'relaxed' AND (rule.group_limit > 256 OR EXISTS (
        SELECT 1 FROM holdfast.overrides o WHERE o.kind = 'group' AND o.queue = named AND o.job_limit > 256));
    DELETE FROM holdfast.bounds WHERE kind = 'queue' AND name = named;
    IF b.job_limit IS NOT NULL OR (b.rate).count IS NOT NULL OR b.rated OR b.wide OR rule.aging IS NOT NULL THEN
        INSERT INTO holdfast.bounds (kind, name, job_limit, rate, rated, wide, aging)
        VALUES ('queue', named, b.job_limit, b.rate, b.rated, coalesce(b.wide, false), rule.aging);
    END IF;
    PERFORM holdfast.set_limited();
END $$

-- :: function_bind_task
CREATE OR REPLACE FUNCTION holdfast.bind_task(named text, step integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    before smallint[] := holdfast.lanes_of(named);
    rule holdfast.tasks;
    said holdfast.overrides;
    b holdfast.bounds;
BEGIN
    SELECT * INTO rule FROM holdfast.tasks WHERE name = named;
    SELECT * INTO said FROM holdfast.overrides WHERE kind = 'task' AND queue = '' AND name = named;
    b.job_limit := CASE WHEN coalesce(said.job_limit, rule.job_limit) < 1000000000
                        THEN coalesce(said.job_limit, rule.job_limit) END;
    b.rate := holdfast.in_force(said.rate, rule.rate);
    DELETE FROM holdfast.bounds WHERE kind = 'task' AND name = named RETURNING lane INTO b.lane;
    IF b.job_limit IS NOT NULL OR (b.rate).count IS NOT NULL OR rule.apart OR said.apart THEN
        INSERT INTO holdfast.bounds (kind, name, lane, job_limit, rate)
        SELECT 'task', named, coalesce(b.lane, max(u.lane) + 1), b.job_limit, b.rate
        FROM (SELECT 2 AS lane UNION ALL SELECT lane FROM holdfast.bounds
              UNION ALL SELECT unnest(lanes) FROM holdfast.rearranging) u;  -- a lane that holds no other task's jobs
    END IF;
    PERFORM holdfast.lanes_changed(named, before, step), holdfast.set_limited();
END $$

-- :: function_set_limited
CREATE OR REPLACE FUNCTION holdfast.set_limited() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    queues text[] := ARRAY(SELECT name FROM holdfast.bounds WHERE kind = 'queue' AND job_limit IS NOT NULL);
    tasks text[] := ARRAY(SELECT name FROM holdfast.bounds WHERE kind = 'task' AND job_limit IS NOT NULL);
BEGIN  -- running jobs count if a limit is in force for their queue or task
    UPDATE holdfast.jobs SET limited = NOT limited
    WHERE state = 'running' AND limited <> (queue = ANY (queues) OR task = ANY (tasks));
END $$

-- :: function_fit
-- Give groups whose rule changed exactly as many ready jobs as the rule allows.
CREATE OR REPLACE FUNCTION holdfast.fit(places holdfast.place[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(places), 0) = 0 THEN RETURN; END IF;
    UPDATE holdfast.flows f SET wakes_at = NULL FROM unnest(places) p
    WHERE f.kind = 'group' AND f.queue = p.queue AND f.name = p.grp AND f.wakes_at IS NOT NULL;
    PERFORM holdfast.keep_up(at), holdfast.set_groups_back(places, at), holdfast.withdraw(places, at);
    PERFORM holdfast.refill_groups(places, at);
END $$

-- == pause: pause or resume a queue, a group or a task; who, when and why are stored. Holds the rules lock exclusively.

-- :: call
SELECT holdfast.pause(%(kind)s, %(queue)s, %(name)s, %(reason)s, %(by)s, %(step)s, %(now)s)

-- :: resume
SELECT holdfast.resume(%(kind)s, %(queue)s, %(name)s, %(skip_dead)s, %(step)s, %(now)s)

-- :: function_pause
CREATE OR REPLACE FUNCTION holdfast.pause(what text, queued text, named text, why text, who text, step integer,
                                          given double precision) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision;
    before smallint[];
BEGIN
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    before := holdfast.lanes_of(named);
    INSERT INTO holdfast.pauses (kind, queue, name, reason, paused_by, paused_at)
    VALUES (what, queued, named, why, who, at) ON CONFLICT DO NOTHING;
    IF what = 'group' THEN
        PERFORM holdfast.fit(ARRAY[ROW(queued, named)::holdfast.place], at);
    ELSIF what = 'task' THEN
        PERFORM holdfast.lanes_changed(named, before, step);
    END IF;
END $$

-- :: function_resume
CREATE OR REPLACE FUNCTION holdfast.resume(what text, queued text, named text, skip_dead boolean, step integer,
                                           given double precision) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision;
    before smallint[];
    paused boolean;
BEGIN
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    before := holdfast.lanes_of(named);
    DELETE FROM holdfast.pauses WHERE kind = what AND queue = queued AND name = named;
    paused := FOUND;
    IF what = 'queue' THEN
        UPDATE holdfast.flows SET shut_until = 0 WHERE kind = what AND queue = queued AND name = named AND shut_until > at;
    ELSIF skip_dead THEN  -- the group goes on without the dead jobs that stop it
        UPDATE holdfast.jobs j SET held = false
        WHERE what = 'group' AND j.queue = queued AND j.grp = named AND @in_play(j) AND j.state = 'dead';
    END IF;
    IF NOT paused AND NOT FOUND THEN RETURN false; END IF;
    PERFORM holdfast.keep_up(at);
    IF what = 'group' THEN
        PERFORM holdfast.fit(ARRAY[ROW(queued, named)::holdfast.place], at);
    ELSIF what = 'task' THEN
        PERFORM holdfast.lanes_changed(named, before, step);
    END IF;
    RETURN true;
END $$
