-- flaws: unreadable values and contradictions, for audit and doctor. Read-only, page by page.
-- Each statement uses one snapshot, so a job that changes meanwhile is not reported.

-- :: jobs
-- A page of jobs by seq: the seq of its last job, and of each job that needs a closer look the id, record and flaws.
WITH page AS MATERIALIZED (SELECT * FROM holdfast.jobs WHERE seq > %(after)s ORDER BY seq LIMIT 10000)
SELECT (SELECT max(seq) FROM page), p.id, p.record, p.wrong FROM (SELECT 1) one LEFT JOIN (
    SELECT j.id, holdfast.job_record(j)::text AS record, array_remove(ARRAY[
        CASE WHEN i.seq IS NULL THEN 'its id is not in the table ids'
             WHEN i.seq <> j.seq THEN 'the table ids names another row for its id' END,
        CASE WHEN NOT holdfast.is_sound(j.state, j.token, j.worker, j.finished_at, j.turn, j.grp, j.reason, j.key,
                                        j.holds_key) THEN 'its columns contradict its state' END,
        CASE WHEN greatest(j.attempts, j.failures, j.stalls, j.shared_stalls) = 2147483647
             THEN 'a counter is at its maximum' END,
        CASE WHEN j.fence > 4611686018427387904 THEN 'its fence is near its maximum' END,
        CASE WHEN j.due_at IN ('NaN', 'Infinity', '-Infinity') OR j.expires_at = 'NaN' THEN 'a time is no time' END], NULL)
        AS wrong
    FROM page j LEFT JOIN holdfast.ids i ON i.id = j.id
    WHERE j.errors IS NOT NULL OR j.revival IS NOT NULL OR i.seq IS DISTINCT FROM j.seq
       OR NOT holdfast.is_sound(j.state, j.token, j.worker, j.finished_at, j.turn, j.grp, j.reason, j.key, j.holds_key)
       OR greatest(j.attempts, j.failures, j.stalls, j.shared_stalls) = 2147483647 OR j.fence > 4611686018427387904
       OR 'NaN' IN (j.due_at, j.created_at, j.expires_at, j.started_at, j.finished_at, j.prune_at, j.progress,
                    j.key_window, j.due_max)
       OR greatest(j.due_at, j.created_at, j.expires_at, j.started_at, j.finished_at) = 'Infinity'
       OR least(j.due_at, j.created_at, j.expires_at, j.started_at, j.finished_at) = '-Infinity'
    ORDER BY j.seq) p ON true

-- :: ids
-- A page of ids: the last id, and the ids that refer to no job or to another job's row.
WITH page AS MATERIALIZED (SELECT * FROM holdfast.ids WHERE id > %(after)s ORDER BY id LIMIT 10000)
SELECT (SELECT max(id) FROM page), p.id FROM (SELECT 1) one LEFT JOIN (
    SELECT i.id FROM page i LEFT JOIN holdfast.jobs j ON j.seq = i.seq WHERE j.id IS DISTINCT FROM i.id
      AND NOT EXISTS (SELECT FROM holdfast.remembered r WHERE r.id = i.id)
    ORDER BY i.id) p ON true

-- :: letters
-- A page of dead letters by logical name: the name, the record, and whether the job is missing.
SELECT l.logical, holdfast.letter_record(l)::text, j.seq IS NULL FROM holdfast.letters l
LEFT JOIN holdfast.ids i ON i.id = l.job_id LEFT JOIN holdfast.jobs j ON j.seq = i.seq
WHERE l.logical > %(after)s ORDER BY l.logical LIMIT 10000

-- :: store
-- The store as a whole: its functions, its counter, the row counts of tables that must have one row, and workers with
-- an invalid deadline.
SELECT ARRAY(SELECT p.proname::text FROM pg_proc p JOIN pg_class c ON c.oid = 'holdfast.jobs'::regclass
             WHERE p.pronamespace = c.relnamespace),
       (SELECT s.last_value FROM pg_sequences s JOIN pg_namespace n ON n.nspname = s.schemaname  -- NULL: no privilege
        JOIN pg_class c ON c.relnamespace = n.oid
        WHERE c.oid = 'holdfast.jobs'::regclass AND s.sequencename = 'ticks'), (SELECT count(*) FROM holdfast.incarnation),
       (SELECT count(*) FROM holdfast.seal),
       ARRAY(SELECT w.id FROM holdfast.workers w WHERE w.deadline IN ('NaN', 'Infinity') ORDER BY w.id LIMIT 1000)

-- :: workers
SELECT w.id, jsonb_build_object('id', w.id, 'lease_seconds', w.lease_seconds, 'queues', w.queues, 'slots', w.slots,
    'started_at', w.started_at, 'renewed_at', w.renewed_at)::text FROM holdfast.workers w ORDER BY w.id LIMIT 10000

-- :: entries
SELECT name, record::text FROM holdfast.entries ORDER BY name
