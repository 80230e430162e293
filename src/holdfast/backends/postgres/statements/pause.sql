-- pause: of a queue, a group or a task; who, when and why are kept. The rules are held alone meanwhile.

-- :: call
SELECT holdfast.pause(%(kind)s, %(queue)s, %(name)s, %(reason)s, %(by)s, %(step)s, %(now)s)

-- :: resume
SELECT holdfast.resume(%(kind)s, %(queue)s, %(name)s, %(step)s, %(now)s)

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
CREATE OR REPLACE FUNCTION holdfast.resume(what text, queued text, named text, step integer,
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
