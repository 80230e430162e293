-- limit: an operator's word on a queue, a group or a task; and what is in force of all words and rules.
-- The rules are held alone meanwhile, so nobody claims, refills or enqueues by half a rule. Of the jobs concerned a few
-- are rearranged in the same step, the others piecewise (rearrange.sql); until then no claim leases one of them.

-- :: call
SELECT holdfast.limit_scope(%(kind)s, %(queue)s, %(name)s, %(says_limit)s, %(limit)s::integer, %(says_rate)s,
                            %(rate)s::jsonb, %(says_apart)s, %(apart)s::boolean, %(step)s, %(now)s)

-- :: function_limit_scope
CREATE OR REPLACE FUNCTION holdfast.limit_scope(what text, queued text, named text, says_limit boolean, most integer,
    says_rate boolean, rated jsonb, says_apart boolean, alone boolean, step integer, given double precision) RETURNS void LANGUAGE plpgsql
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
    INSERT INTO holdfast.overrides AS o (kind, queue, name, job_limit, rate, apart)
    VALUES (what, queued, named, most, said, alone)
    ON CONFLICT (kind, queue, name) DO UPDATE
    SET job_limit = CASE WHEN says_limit THEN excluded.job_limit ELSE o.job_limit END,
        rate = CASE WHEN says_rate THEN excluded.rate ELSE o.rate END,
        apart = CASE WHEN says_apart THEN excluded.apart ELSE o.apart END;
    DELETE FROM holdfast.overrides WHERE kind = what AND queue = queued AND name = named
    AND job_limit IS NULL AND (rate).count IS NULL AND apart IS NULL;
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
              UNION ALL SELECT unnest(lanes) FROM holdfast.rearranging) u;  -- where nobody's jobs are left
    END IF;
    PERFORM holdfast.lanes_changed(named, before, step), holdfast.set_limited();
END $$

-- :: function_set_limited
CREATE OR REPLACE FUNCTION holdfast.set_limited() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    queues text[] := ARRAY(SELECT name FROM holdfast.bounds WHERE kind = 'queue' AND job_limit IS NOT NULL);
    tasks text[] := ARRAY(SELECT name FROM holdfast.bounds WHERE kind = 'task' AND job_limit IS NOT NULL);
BEGIN  -- what runs is counted where a limit is in force
    UPDATE holdfast.jobs SET limited = NOT limited
    WHERE state = 'running' AND limited <> (queue = ANY (queues) OR task = ANY (tasks));
END $$

-- :: function_fit
-- Groups whose rule changed have as many ready jobs as it says, no fewer and no more.
CREATE OR REPLACE FUNCTION holdfast.fit(places holdfast.place[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(cardinality(places), 0) = 0 THEN RETURN; END IF;
    UPDATE holdfast.flows f SET wakes_at = NULL FROM unnest(places) p
    WHERE f.kind = 'group' AND f.queue = p.queue AND f.name = p.grp AND f.wakes_at IS NOT NULL;
    PERFORM holdfast.keep_up(at), holdfast.set_groups_back(places, at), holdfast.withdraw(places, at);
    PERFORM holdfast.refill_groups(places, at);
END $$
