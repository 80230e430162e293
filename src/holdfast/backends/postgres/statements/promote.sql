-- promote: bring what is due into play: scheduled jobs, expiries, automatic revivals.
-- Bounded. Groups (and the keys of letters) are gathered and locked before; what is not in a locked group is left alone.

-- :: call
SELECT holdfast.promote(%(limit)s, %(now)s)::text

-- :: function_any_due
CREATE OR REPLACE FUNCTION holdfast.any_due(flowing boolean, at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- mostly not: then a claim spares itself the rest
    RETURN EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
        OR EXISTS (SELECT 1 FROM holdfast.jobs WHERE expires_at <= at AND expires_at IS NOT NULL
                   AND state IN ('scheduled', 'waiting', 'ready'))
        OR EXISTS (SELECT 1 FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL)
        OR flowing AND EXISTS (SELECT 1 FROM holdfast.flows WHERE wakes_at <= at AND wakes_at IS NOT NULL);
END $$

-- :: function_lock_letters_due
CREATE OR REPLACE FUNCTION holdfast.lock_letters_due(most integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.lock_keys(array_agg(k.name)) FROM (
        SELECT job_id FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL
        ORDER BY revive_at LIMIT most) l
    JOIN holdfast.ids i ON i.id = l.job_id JOIN holdfast.jobs j ON j.seq = i.seq CROSS JOIN LATERAL unnest(holdfast.key_names(j)) k(name)
    HAVING count(*) > 0;
END $$

-- :: function_places_due
CREATE OR REPLACE FUNCTION holdfast.places_due(most integer, at double precision)
RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(DISTINCT ROW(f.queue, f.grp)::holdfast.place) FROM (
        (SELECT queue, grp FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at ORDER BY due_at, seq LIMIT most)
        UNION ALL
        (SELECT queue, grp FROM holdfast.jobs
         WHERE expires_at <= at AND expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready')
         ORDER BY expires_at LIMIT most)
        UNION ALL
        (SELECT queue, grp FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL
         ORDER BY revive_at LIMIT most)
        UNION ALL
        (SELECT queue, name FROM holdfast.flows WHERE wakes_at <= at AND wakes_at IS NOT NULL
         ORDER BY wakes_at LIMIT most)) f WHERE f.grp IS NOT NULL);
END $$

-- :: function_promote_due
CREATE OR REPLACE FUNCTION holdfast.promote_due(most integer, places holdfast.place[], at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    letter text;
    due integer;
    expired integer := 0;
    letters integer := 0;
    revived integer := 0;
    woken integer;
BEGIN
    FOR j IN SELECT * FROM holdfast.jobs e
             WHERE e.expires_at <= at AND e.expires_at IS NOT NULL AND e.state IN ('scheduled', 'waiting', 'ready')
               AND (e.grp IS NULL OR ROW(e.queue, e.grp)::holdfast.place = ANY (places))
             ORDER BY e.expires_at LIMIT most FOR UPDATE SKIP LOCKED LOOP
        IF j.drop_expired THEN
            PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, 'expired', 86400, at);
        ELSE
            PERFORM holdfast.kill(j, 'expired', 'text:expired', at);
        END IF;
        expired := expired + 1;
    END LOOP;
    WITH picked AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs s
        WHERE s.state = 'scheduled' AND s.due_at <= at
          AND (s.grp IS NULL OR ROW(s.queue, s.grp)::holdfast.place = ANY (places))
        ORDER BY s.due_at, s.seq LIMIT most FOR UPDATE SKIP LOCKED
    ), numbered AS MATERIALIZED (SELECT seq, nextval('holdfast.ticks') AS tick FROM picked)
    UPDATE holdfast.jobs d
    SET state = CASE WHEN d.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        lane = CASE WHEN d.task = ANY (ARRAY(SELECT p.name FROM holdfast.pauses p WHERE p.kind = 'task')) THEN 2
                    ELSE coalesce((SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = d.task),
                                  CASE WHEN d.grp IS NULL THEN 0 ELSE 1 END) END,
        rank = CASE WHEN d.queue = ANY (ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.aging IS NOT NULL)) THEN 0
                    ELSE d.priority END,
        turn = CASE WHEN d.grp IS NOT NULL THEN NULL
                    WHEN d.queue = ANY (ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.aging IS NOT NULL))
                    THEN n.tick - holdfast.age_shift(d.queue, d.priority) ELSE n.tick END
    FROM numbered n WHERE d.seq = n.seq;
    GET DIAGNOSTICS due = ROW_COUNT;
    FOR letter IN SELECT l.job_id FROM holdfast.letters l
                  WHERE l.revive_at <= at AND l.revive_at IS NOT NULL
                    AND (l.grp IS NULL OR ROW(l.queue, l.grp)::holdfast.place = ANY (places))
                  ORDER BY l.revive_at LIMIT most FOR UPDATE SKIP LOCKED LOOP
        letters := letters + 1;
        revived := revived + holdfast.revive_letter(letter, at)::integer;
    END LOOP;
    UPDATE holdfast.flows f SET wakes_at = NULL FROM unnest(places) p
    WHERE f.kind = 'group' AND f.queue = p.queue AND f.name = p.grp AND f.wakes_at <= at;
    GET DIAGNOSTICS woken = ROW_COUNT;
    IF due + expired + revived + woken > 0 THEN PERFORM holdfast.refill_groups(places, at); END IF;
    RETURN jsonb_build_object('due', due, 'expired', expired, 'revived', revived,
                              'more', most IN (due, expired, letters));
END $$

-- :: function_promote
CREATE OR REPLACE FUNCTION holdfast.promote(most integer, given double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    places holdfast.place[];
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    PERFORM holdfast.lock_letters_due(most, at);
    places := holdfast.places_due(most, at);
    PERFORM holdfast.lock_groups(places), holdfast.keep_up(at);
    RETURN holdfast.promote_due(most, places, at);
END $$
