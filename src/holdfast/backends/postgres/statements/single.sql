-- single: take in one job without group and key, as most calls bring; for a quarter of what enqueue.sql takes for it.
-- Takes the job by field and now. Returns whether this call made it; else its id is known.
-- Safe against a rival: the rules are shared, so no seal, pause or limit comes meanwhile; the unique index of ids
-- decides. Only an open transaction of a caller that enqueues the same id can make it wait: it gives up soon and is
-- called again, so that nobody waits for the rules behind it.

-- :: call
SELECT holdfast.enqueue_single(%(id)s, %(task)s, %(queue)s, %(priority)s, %(delay)s, %(due_at)s, %(expires)s,
                               %(max_stalls)s, %(args)s, %(revival)s, %(options)s, %(now)s)::text

-- :: direct
SELECT holdfast.enqueue_single($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, NULL)

-- :: function_enqueue_single
CREATE OR REPLACE FUNCTION holdfast.enqueue_single(
    named text, tasked text, queued text, prior integer, delay double precision, due double precision,
    expiry double precision, stalls_max integer, arguments bytea, revived jsonb, said bytea, given double precision
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
    at double precision;
    sealed text;
    its_lane smallint;
    ages double precision;
    tick bigint;
    number bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('holdfast.rules'), 0);
    at := coalesce(given, extract(epoch FROM clock_timestamp())::double precision);
    SELECT (SELECT s.record FROM holdfast.seal s WHERE s.closed),
           CASE WHEN EXISTS (SELECT FROM holdfast.pauses p WHERE p.kind = 'task' AND p.queue = '' AND p.name = tasked)
                THEN 2
                ELSE coalesce((SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = tasked), 0) END,
           (SELECT b.aging FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = queued),
           (SELECT last_value FROM holdfast.ticks)
    INTO sealed, its_lane, ages, tick;
    IF sealed IS NOT NULL THEN PERFORM holdfast.refuse('HF005', sealed::jsonb); END IF;
    IF tick < at * 1000000 THEN PERFORM holdfast.keep_up(at); END IF;
    number := nextval('holdfast.jobs_seq_seq');
    INSERT INTO holdfast.ids (id, seq) VALUES (named, number) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    due := coalesce(due, at + coalesce(delay, 0));
    INSERT INTO holdfast.jobs (seq, id, task, queue, state, priority, lane, rank, turn, max_stalls, created_at, due_at,
                               expires_at, args, revival, options)
    VALUES (number, named, tasked, queued, CASE WHEN due > at THEN 'scheduled' ELSE 'ready' END, prior, its_lane,
            CASE WHEN ages IS NULL THEN prior ELSE 0 END,
            CASE WHEN due <= at THEN nextval('holdfast.ticks') - coalesce(floor(prior * ages * 1000000)::bigint, 0) END,
            stalls_max, at, due, due + expiry, arguments, revived, said);
    RETURN true;
END $$
