-- declare: a queue's rule for its groups, and an operator's override for one group; the latest word wins.
-- Rules are changed by one at a time, alone: everyone who brings grouped jobs into play shares this lock to its end.

-- :: call
SELECT holdfast.declare_rules(%(rules)s::jsonb, %(now)s)

-- :: limit
SELECT holdfast.limit_group(%(queue)s, %(grp)s, %(limit)s, %(now)s)

-- :: function_declare_rules
CREATE OR REPLACE FUNCTION holdfast.declare_rules(rules jsonb, given double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    at double precision;
    rule record;
    places holdfast.place[];
BEGIN
    -- Every start of every worker declares the same again: that must wait for nobody.
    IF NOT EXISTS (SELECT 1 FROM jsonb_to_recordset(rules) AS r(name text, group_limit integer, group_order text)
                   LEFT JOIN holdfast.queues q ON q.name = r.name AND q.group_order = r.group_order
                   AND q.group_limit = CASE r.group_order WHEN 'strict' THEN 1 ELSE r.group_limit END
                   WHERE q.name IS NULL) THEN RETURN; END IF;
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    PERFORM holdfast.keep_up(at);
    FOR rule IN SELECT * FROM jsonb_to_recordset(rules) AS r(name text, group_limit integer, group_order text) LOOP
        INSERT INTO holdfast.queues AS q (name, group_limit, group_order)
        VALUES (rule.name, CASE rule.group_order WHEN 'strict' THEN 1 ELSE rule.group_limit END, rule.group_order)
        ON CONFLICT (name) DO UPDATE SET group_limit = excluded.group_limit, group_order = excluded.group_order
        WHERE (q.group_limit, q.group_order) IS DISTINCT FROM (excluded.group_limit, excluded.group_order);
        CONTINUE WHEN NOT FOUND;
        SELECT array_agg(DISTINCT ROW(j.queue, j.grp)::holdfast.place) INTO places
        FROM holdfast.jobs j WHERE j.queue = rule.name AND j.grp IS NOT NULL AND j.state IN ('waiting', 'ready');
        PERFORM holdfast.withdraw(places);
        PERFORM holdfast.refill_groups(places, at);
    END LOOP;
END $$

-- :: function_limit_group
CREATE OR REPLACE FUNCTION holdfast.limit_group(named text, grouped text, most integer, given double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE at double precision;
BEGIN
    PERFORM holdfast.own_rules();
    PERFORM holdfast.refuse_sealed();
    at := holdfast.store_now(given);
    IF most IS NULL THEN
        DELETE FROM holdfast.groups WHERE queue = named AND name = grouped;
    ELSIF most < 1 THEN
        PERFORM holdfast.refuse('HF004', to_jsonb(format(
            'a group''s limit is at least 1, not %s. To stop a group, pause it.', most)));
    ELSIF most > 1 AND holdfast.is_strict(named) THEN
        PERFORM holdfast.refuse('HF004', to_jsonb(format('groups of queue ''%s'' are strict: one job at a time. '
            'Declare it with group_order=''relaxed'' first.', named)));
    ELSE
        INSERT INTO holdfast.groups (queue, name, group_limit) VALUES (named, grouped, most)
        ON CONFLICT (queue, name) DO UPDATE SET group_limit = excluded.group_limit;
    END IF;
    PERFORM holdfast.keep_up(at), holdfast.withdraw(ARRAY[ROW(named, grouped)::holdfast.place]);
    PERFORM holdfast.refill_groups(ARRAY[ROW(named, grouped)::holdfast.place], at);
END $$
