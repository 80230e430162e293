-- history: what is kept about the past: the failures and marks of each job, roll-ups by minute and hour, events.

-- == mark: append to a job's timeline, in the step that makes the transition (R65). The caller has locked the job's row.

-- :: fragment lease_facts
-- What a mark says about the lease of j that ended.
jsonb_build_object('worker', j.worker, 'fence', j.fence, 'started_at', j.started_at)

-- :: fragment with_mark(kind)
-- The marks of job j plus that of an operator's verb, called by `who`.
holdfast.with_mark(j.marks, @kind, jsonb_build_object('by', who), at)

-- :: function_with_mark
-- Beyond MARKS_KEPT_MAX the second entry makes room, so the first one stays. Facts that are empty are left out.
CREATE OR REPLACE FUNCTION holdfast.with_mark(marks jsonb, kind text, facts jsonb, at double precision)
RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(marks) IS DISTINCT FROM 'array' THEN '[]'
                WHEN jsonb_array_length(marks) >= @MARKS_KEPT_MAX THEN marks - 1 ELSE marks END
        || jsonb_build_array(jsonb_build_object('kind', kind, 'at', at)
                             || (SELECT coalesce(jsonb_object_agg(f.key, f.value), '{}') FROM jsonb_each(facts) f
                                 WHERE f.value NOT IN ('null', '""')))
$$

-- :: function_with_note
-- Like with_mark, for what a lease may repeat: it keeps the first one and the newest (formulas.noted).
CREATE OR REPLACE FUNCTION holdfast.with_note(marks jsonb, kind text, facts jsonb, at double precision)
RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN marks -> -1 @> o.same AND marks -> -2 @> o.same
        THEN holdfast.with_mark(marks - -1, kind, facts || jsonb_build_object(
            'count', coalesce((marks -> -1 ->> 'count')::integer, 1) + 1), at)
        ELSE holdfast.with_mark(marks, kind, facts, at) END
    FROM (VALUES (jsonb_build_object('kind', kind, 'fence', facts -> 'fence'))) o(same)
$$

-- :: function_mark
-- An operator's verb, called by `who`, for a caller that does not write the row itself.
CREATE OR REPLACE FUNCTION holdfast.mark(j holdfast.jobs, kind text, who text, at double precision)
RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.jobs SET marks = holdfast.with_mark(marks, kind, jsonb_build_object('by', who), at) WHERE seq = j.seq
$$

-- :: function_mark_revived
-- Jobs that were revived automatically.
CREATE OR REPLACE FUNCTION holdfast.mark_revived(seqs bigint[], at double precision) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.jobs SET marks = holdfast.with_mark(marks, 'revive', jsonb_build_object('text', @AUTOMATIC), at)
    WHERE seq = ANY (seqs)
$$

-- == annotate: an operator adds a note to a job's timeline, whatever its state (R100).

-- :: call
SELECT holdfast.annotate(%(id)s, %(text)s, %(by)s, %(now)s)::text

-- :: function_annotate
CREATE OR REPLACE FUNCTION holdfast.annotate(named text, said text, who text, given double precision)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    UPDATE holdfast.jobs
    SET marks = holdfast.with_mark(j.marks, 'note', jsonb_build_object('by', who, 'text', said), at) WHERE seq = j.seq;
    RETURN (SELECT holdfast.job_record(r) FROM holdfast.jobs r WHERE r.seq = j.seq);
END $$

-- == failures: how a job's failures are stamped and appended; the newest are kept.

-- :: function_stamped
CREATE OR REPLACE FUNCTION holdfast.stamped(j holdfast.jobs, failure jsonb, at double precision)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT failure || jsonb_build_object('at', at, 'attempt', @counted(j.attempts, 1), 'fence', j.fence, 'worker', j.worker,
                                         'started_at', j.started_at)
$$

-- :: function_with_failure
CREATE OR REPLACE FUNCTION holdfast.with_failure(errors jsonb, failure jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(e.value ORDER BY e.ordinality)
    FROM jsonb_array_elements(coalesce(errors, '[]') || jsonb_build_array(failure)) WITH ORDINALITY e
    WHERE e.ordinality > jsonb_array_length(coalesce(errors, '[]')) + 1 - @ERRORS_KEPT_MAX
$$

-- == record: add a worker's counts to the roll-ups and keep its events (R66).
-- Concurrency: rows of roll-ups are locked in the order of their key, then the position of events; a holder of these
-- locks waits for no other lock. So it can be the last thing any step does.

-- :: call
SELECT holdfast.record(%(worker)s, %(number)s, %(rollups)s::jsonb, %(events)s::jsonb, %(keep_minutes)s, %(keep_hours)s,
                       %(now)s)

-- :: function_record
CREATE OR REPLACE FUNCTION holdfast.record(who text, numbered bigint, rolled jsonb, seen jsonb,
    keep_minutes double precision, keep_hours double precision, given double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE moment double precision := holdfast.store_now(given);
BEGIN
    IF who <> '' THEN
        INSERT INTO holdfast.recordings AS r (worker, number, at) VALUES (who, numbered, moment)
        ON CONFLICT (worker) DO UPDATE SET number = excluded.number, at = excluded.at WHERE r.number < excluded.number;
        IF NOT FOUND THEN RETURN false; END IF;
    END IF;
    PERFORM holdfast.roll_up(rolled, moment);
    IF jsonb_array_length(seen) > 0 THEN PERFORM holdfast.keep_events(seen, moment); END IF;
    IF keep_minutes IS NOT NULL THEN PERFORM holdfast.prune_rollups('minute', moment - keep_minutes, moment); END IF;
    IF keep_hours IS NOT NULL THEN PERFORM holdfast.prune_rollups('hour', moment - keep_hours, moment); END IF;
    RETURN true;
END $$

-- :: function_roll_up
CREATE OR REPLACE FUNCTION holdfast.roll_up(rolled jsonb, now double precision) RETURNS void LANGUAGE sql AS $$
    INSERT INTO holdfast.rollups AS r (span, at, queue, task, worker, outcome, count, waits, runs)
    SELECT s.span, floor(now / s.seconds) * s.seconds, coalesce(c.queue, ''), coalesce(c.task, ''),
           coalesce(c.worker, ''), c.outcome, c.count, coalesce(c.waits, '{}'), coalesce(c.runs, '{}')
    FROM (VALUES ('hour', 3600), ('minute', 60)) s(span, seconds)
    CROSS JOIN jsonb_to_recordset(rolled)
        AS c(queue text, task text, worker text, outcome text, count bigint, waits bigint[], runs bigint[])
    WHERE s.span = 'minute' OR c.worker IS NULL
    ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (span, at, queue, task, worker, outcome) DO UPDATE
    SET count = r.count + excluded.count, waits = holdfast.added(r.waits, excluded.waits),
        runs = holdfast.added(r.runs, excluded.runs)
$$

-- :: function_added
-- rollups.added
CREATE OR REPLACE FUNCTION holdfast.added(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT coalesce(u.x, 0) + coalesce(u.y, 0) FROM unnest(a, b) WITH ORDINALITY u(x, y, n) ORDER BY u.n)
$$

-- :: function_count_ended
-- A job that ends without a lease: no worker counts it (R67).
CREATE OR REPLACE FUNCTION holdfast.count_ended(j holdfast.jobs, ending text, at double precision) RETURNS void
LANGUAGE sql AS $$
    SELECT holdfast.roll_up(jsonb_build_array(jsonb_build_object(
        'queue', j.queue, 'task', j.task, 'outcome', ending, 'count', 1)), at)
$$

-- :: function_prune_rollups
CREATE OR REPLACE FUNCTION holdfast.prune_rollups(of_span text, before double precision, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM holdfast.rollups WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM holdfast.rollups r WHERE r.span = of_span AND r.at < before
        ORDER BY r.at LIMIT @ROLLUPS_PER_PRUNE_MAX FOR UPDATE SKIP LOCKED));
    DELETE FROM holdfast.recordings r WHERE r.at < prune_rollups.at - @RECORDINGS_REMEMBERED_SECONDS;
END $$

-- :: function_keep_events
CREATE OR REPLACE FUNCTION holdfast.keep_events(seen jsonb, now double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE newest bigint;
BEGIN
    INSERT INTO holdfast.event_position AS p (last) VALUES (jsonb_array_length(seen))
    ON CONFLICT (single) DO UPDATE SET last = p.last + excluded.last RETURNING p.last INTO newest;
    INSERT INTO holdfast.events (position, at, name, body)
    SELECT newest - jsonb_array_length(seen) + e.n, now, e.one ->> 0, e.one ->> 1
    FROM jsonb_array_elements(seen) WITH ORDINALITY e(one, n);
    DELETE FROM holdfast.events WHERE position <= newest - @EVENTS_KEPT_MAX;
END $$

-- == history: what was recorded. Never writes.

-- :: rollups
SELECT at::double precision, queue, task, worker, outcome, count, waits, runs FROM holdfast.rollups
WHERE span = %(span)s AND at >= %(since)s AND at < %(until)s AND (worker <> '') = %(workers)s
  AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s)
ORDER BY at, queue, task, worker, outcome

-- :: events
SELECT position, at, name, body FROM holdfast.events
WHERE position > %(after)s ORDER BY position LIMIT %(limit)s

-- :: positions
SELECT coalesce((SELECT min(position) FROM holdfast.events), 0), coalesce((SELECT last FROM holdfast.event_position), 0)
