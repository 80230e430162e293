-- declare: the rules of queues and tasks; the latest word wins.
-- Rules are changed by one at a time, alone: everyone who brings jobs into play shares this lock to its end. So a change
-- is brief however many jobs it concerns: at most `step` of them, or groups, are rearranged here, the others piecewise
-- (rearrange.sql).

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
           r.group_rate, r.aging
    FROM jsonb_to_recordset(given) AS r(name text, group_limit integer, group_order text, "limit" integer,
        rate holdfast.rate, group_rate holdfast.rate, aging double precision)
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
BEGIN  -- how far the finished jobs were counted is not part of the rule
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
    -- Every start of every worker declares the same again: that must wait for nobody.
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
    ELSIF rule.retain_count IS NOT NULL THEN  -- what finished so far is marked by prune, a piece at a time
        rule.count_until := (SELECT coalesce(max(seq), 0) FROM holdfast.jobs);
    END IF;
    IF NOT holdfast.says_nothing(rule) THEN INSERT INTO holdfast.tasks SELECT rule.*; END IF;
    PERFORM holdfast.bind_task(rule.name, step);
END $$
