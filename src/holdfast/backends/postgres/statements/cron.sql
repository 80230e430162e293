-- cron: cron entries and their ticks.

-- == tick: write a cron entry and enqueue its jobs in one step. The caller decides when a tick is due; this only checks
-- that the entry still has the version the caller saw. Takes the tick, which names the entry and the previous job, and
-- its jobs by column. Returns whether it was done, the entry as it is now, and the result for each job.
-- Concurrency: the entry's name is locked first, so of several callers only one finds its version. The keys and groups
-- of the new jobs and of the previous one are locked together, each in order, before any of them is changed.

-- :: call
SELECT holdfast.tick(%(tick)s::jsonb, %(jobs)s::jsonb, %(now)s)::text

-- :: entries
SELECT record::text FROM holdfast.entries ORDER BY name

-- :: function_tick
CREATE OR REPLACE FUNCTION holdfast.tick(wanted jsonb, jobs jsonb, given double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    named text := wanted ->> 'name';
    there holdfast.entries;
    live boolean := false;
    skipped boolean;
    entry jsonb;
    answers jsonb := '[]';
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.entries'), hashtext(named));
    SELECT * INTO there FROM holdfast.entries WHERE name = named;
    IF coalesce(there.version, 0) <> (wanted ->> 'version')::bigint
       OR at < (wanted ->> 'not_before')::double precision THEN
        RETURN jsonb_build_object('done', false, 'entry', there.record);
    END IF;
    IF wanted ->> 'previous' IS NOT NULL AND wanted ->> 'overlap' <> 'allow' THEN
        live := holdfast.previous_lives(wanted ->> 'previous', wanted ->> 'overlap' = 'cancel', jobs, at);
    END IF;
    skipped := live AND wanted ->> 'overlap' = 'skip';
    IF NOT skipped THEN
        IF live THEN PERFORM holdfast.cancel(wanted ->> 'previous', 'cron ' || (wanted ->> 'name'), '', at); END IF;
        IF jobs IS NOT NULL THEN answers := holdfast.enqueue(jobs, at); END IF;
    END IF;
    entry := nullif(CASE WHEN skipped THEN wanted -> 'entry_if_skipped' ELSE wanted -> 'entry' END, 'null')
             || jsonb_build_object('version', (wanted ->> 'version')::bigint + 1);
    DELETE FROM holdfast.entries WHERE name = named;
    INSERT INTO holdfast.entries (name, version, declared, record)
    SELECT named, (entry ->> 'version')::bigint, (entry ->> 'declared')::boolean, entry WHERE entry IS NOT NULL;
    RETURN jsonb_build_object('done', true, 'entry', entry, 'enqueued', answers, 'skipped', skipped);
END $$

-- :: function_previous_lives
-- Whether the job of the previous tick is live. If it is to be cancelled, its key, group and row are locked together
-- with the keys and groups of the new jobs, so that cancel and enqueue find everything locked.
CREATE OR REPLACE FUNCTION holdfast.previous_lives(previous text, cancels boolean, jobs jsonb, at double precision)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    news holdfast.new_job[];
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = previous);
    IF cancels AND j.state IN ('scheduled', 'waiting', 'ready', 'running') THEN
        news := ARRAY(SELECT w FROM holdfast.new_jobs(jobs, at) w ORDER BY w.n);
        PERFORM holdfast.lock_keys(holdfast.key_names(j) || ARRAY(
            SELECT holdfast.key_name(n.queue, n.task, n.key, n.key_global) FROM unnest(news) n WHERE n.key IS NOT NULL));
        PERFORM holdfast.lock_groups(holdfast.places_new(news) || CASE WHEN j.grp IS NOT NULL
                                     THEN ROW(j.queue, j.grp)::holdfast.place END);
        SELECT * INTO j FROM holdfast.jobs WHERE seq = j.seq FOR UPDATE;
    END IF;
    RETURN coalesce(j.state IN ('scheduled', 'waiting', 'ready', 'running'), false);
END $$
