-- report: progress and log lines of running jobs, fenced by (id, token); the newest 200 lines of a job are kept.

-- :: call
SELECT holdfast.report(%(reports)s::jsonb, %(now)s)::text

-- :: function_report
CREATE OR REPLACE FUNCTION holdfast.report(reports jsonb, given double precision)
RETURNS jsonb LANGUAGE plpgsql SET enable_seqscan = off SET lock_timeout = '100ms' AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    answers jsonb := '[]';
    one jsonb;
    found_seq bigint;
    newest bigint;
BEGIN
    FOR one IN SELECT r.value FROM jsonb_array_elements(reports) WITH ORDINALITY r ORDER BY r.ordinality LOOP
        UPDATE holdfast.jobs SET progress = coalesce((one ->> 'progress')::double precision, progress),
                                 progress_text = coalesce(one ->> 'text', progress_text)
        WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = one ->> 'id')
          AND token = one ->> 'token' AND state = 'running' RETURNING seq INTO found_seq;
        answers := answers || to_jsonb(CASE WHEN found_seq IS NULL THEN 'lost' ELSE 'ok' END);
        CONTINUE WHEN found_seq IS NULL OR jsonb_array_length(one -> 'lines') = 0;
        SELECT coalesce(max(line), 0) INTO newest FROM holdfast.logs WHERE job_seq = found_seq;
        INSERT INTO holdfast.logs (job_seq, line, at, text)
        SELECT found_seq, newest + l.n, at, l.line
        FROM jsonb_array_elements_text(one -> 'lines') WITH ORDINALITY l(line, n);
        DELETE FROM holdfast.logs WHERE job_seq = found_seq
        AND line <= newest + jsonb_array_length(one -> 'lines') - 200;
    END LOOP;
    RETURN answers;
END $$
