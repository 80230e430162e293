-- history: what is kept about the past: of each job its failures and its marks.

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
