-- promote: bring what is due into play: scheduled jobs, expiries, automatic revivals.
-- Bounded. Groups (and the keys of letters) are gathered and locked before; what is not in a locked group is left alone.

-- :: call
SELECT holdfast.promote(%(limit)s, %(now)s)::text

-- :: function_any_due
CREATE OR REPLACE FUNCTION holdfast.any_due(at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- mostly not: then a claim spares itself the rest
    RETURN EXISTS (SELECT 1 FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= at)
        OR EXISTS (SELECT 1 FROM holdfast.jobs WHERE expires_at <= at AND expires_at IS NOT NULL
                   AND state IN ('scheduled', 'waiting', 'ready'))
        OR EXISTS (SELECT 1 FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL);
END $$

-- :: function_lock_letters_due
CREATE OR REPLACE FUNCTION holdfast.lock_letters_due(most integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.lock_keys(array_agg(l.logical)) FROM (
        SELECT logical FROM holdfast.letters WHERE revive_at <= at AND revive_at IS NOT NULL
        ORDER BY revive_at LIMIT most) l HAVING count(*) > 0;
END $$

-- :: function_lock_keys
CREATE OR REPLACE FUNCTION holdfast.lock_keys(logicals text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.keys'), s.stripe)
    FROM (SELECT DISTINCT hashtext(k) & 1023 AS stripe FROM unnest(logicals) k ORDER BY 1) s;
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
         ORDER BY revive_at LIMIT most)) f WHERE f.grp IS NOT NULL);
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
BEGIN
    FOR j IN SELECT * FROM holdfast.jobs e
             WHERE e.expires_at <= at AND e.expires_at IS NOT NULL AND e.state IN ('scheduled', 'waiting', 'ready')
               AND (e.grp IS NULL OR ROW(e.queue, e.grp)::holdfast.place = ANY (places))
             ORDER BY e.expires_at LIMIT most FOR UPDATE SKIP LOCKED LOOP
        PERFORM holdfast.kill(j, 'expired', 'it was not started within its time', at);
        expired := expired + 1;
    END LOOP;
    WITH picked AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs s
        WHERE s.state = 'scheduled' AND s.due_at <= at
          AND (s.grp IS NULL OR ROW(s.queue, s.grp)::holdfast.place = ANY (places))
        ORDER BY s.due_at, s.seq LIMIT most FOR UPDATE SKIP LOCKED
    ), numbered AS MATERIALIZED (SELECT seq, nextval('holdfast.ticks') AS tick FROM picked)
    UPDATE holdfast.jobs d
    SET state = CASE WHEN d.grp IS NULL THEN 'ready' ELSE 'waiting' END, lane = holdfast.lane_of(d.task, d.grp),
        turn = CASE WHEN d.grp IS NULL THEN n.tick END
    FROM numbered n WHERE d.seq = n.seq;
    GET DIAGNOSTICS due = ROW_COUNT;
    FOR letter IN SELECT l.job_id FROM holdfast.letters l
                  WHERE l.revive_at <= at AND l.revive_at IS NOT NULL
                    AND (l.grp IS NULL OR ROW(l.queue, l.grp)::holdfast.place = ANY (places))
                  ORDER BY l.revive_at LIMIT most FOR UPDATE SKIP LOCKED LOOP
        letters := letters + 1;
        revived := revived + holdfast.revive_letter(letter, at)::integer;
    END LOOP;
    IF due + expired + revived > 0 THEN PERFORM holdfast.refill_groups(places, at); END IF;
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
