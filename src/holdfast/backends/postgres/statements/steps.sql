-- steps: what jobs keep between their attempts (R91 to R94): stored by their handlers and by signals.
-- Concurrency: checkpoint, signal and settle lock the job's row before they look at its steps. So a snooze sees a signal
-- that came first, and a signal sees the job asleep otherwise.

-- == checkpoint: store steps of a running job, fenced by (id, token). Returns ok or lost.

-- :: call
SELECT holdfast.checkpoint(%(id)s, %(token)s, %(steps)s::jsonb, %(now)s)

-- :: function_checkpoint
CREATE OR REPLACE FUNCTION holdfast.checkpoint(named text, its_token text, told jsonb, given double precision)
RETURNS text LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs;
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named)
    AND token = its_token AND state = 'running' FOR UPDATE;
    IF NOT FOUND THEN RETURN 'lost'; END IF;
    INSERT INTO holdfast.steps (job_id, kind, name, number, value, until, at, fence)
    SELECT named, r.kind, r.name, r.number, decode(r.value, 'base64'), at + r.delay, at, j.fence
    FROM jsonb_to_recordset(told) AS r(kind text, name text, number integer, value text, delay double precision)
    ON CONFLICT (job_id, kind, name) DO UPDATE
    SET number = excluded.number, value = excluded.value, until = excluded.until, at = excluded.at,
        fence = excluded.fence;
    RETURN 'ok';
END $$

-- == signal: store a signal; a job that waits for it is brought into play. Returns the job.

-- :: call
SELECT holdfast.signal(%(id)s, %(name)s, %(value)s, %(by)s, %(now)s)::text

-- :: function_signal
CREATE OR REPLACE FUNCTION holdfast.signal(named text, called text, said bytea, who text, given double precision)
RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.finished_at IS NOT NULL THEN PERFORM holdfast.refuse_state(j, 'signal'); END IF;
    IF holdfast.is_signalled(named, called) THEN RETURN holdfast.job_changed(j, at); END IF;
    IF (SELECT count(*) FROM holdfast.steps s WHERE s.job_id = named AND s.kind = 'signal') >= @SIGNALS_MAX THEN
        PERFORM holdfast.refuse('HF009', jsonb_build_object('job_id', named));
    END IF;
    INSERT INTO holdfast.steps (job_id, kind, name, number, value, at, fence)
    VALUES (named, 'signal', called, 0, said, at, j.fence);
    PERFORM holdfast.keep_up(at);
    j.marks := holdfast.with_mark(j.marks, 'signal', jsonb_build_object('by', who, 'text', called), at);
    IF j.state = 'scheduled' AND j.due_at < @DUE_AFTER_PARENTS AND EXISTS (
        SELECT FROM holdfast.steps s
        WHERE s.job_id = named AND s.kind = 'wait' AND s.name = called AND s.fence = j.fence) THEN
        UPDATE holdfast.jobs SET marks = j.marks, @due_now WHERE seq = j.seq;
    ELSE
        UPDATE holdfast.jobs SET marks = j.marks WHERE seq = j.seq;
    END IF;
    RETURN holdfast.job_changed(j, at);
END $$

-- :: function_is_signalled
CREATE OR REPLACE FUNCTION holdfast.is_signalled(named text, called text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM holdfast.steps s WHERE s.job_id = named AND s.kind = 'signal' AND s.name = called);
END $$

-- == remembered: read, remove and carry steps.

-- :: fragment step
s.job_id, s.kind, s.name, s.number, s.value, s.until, s.at, s.fence

-- :: of_job
SELECT @step FROM holdfast.steps s WHERE s.job_id = %(id)s ORDER BY s.kind, s.name

-- :: after
SELECT @step FROM holdfast.steps s WHERE (s.job_id, s.kind, s.name) > (%(job)s, %(kind)s, %(name)s)
ORDER BY s.job_id, s.kind, s.name LIMIT %(limit)s

-- :: now
SELECT holdfast.store_now(NULL)

-- :: function_forget_steps
-- These jobs go, or start afresh.
CREATE OR REPLACE FUNCTION holdfast.forget_steps(past bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM holdfast.steps) THEN
        DELETE FROM holdfast.steps s USING holdfast.jobs j WHERE j.seq = ANY (past) AND s.job_id = j.id;
    END IF;
END $$

-- :: carry
INSERT INTO holdfast.steps (job_id, kind, name, number, value, until, at, fence)
SELECT r.job_id, r.kind, r.name, r.number, decode(r.value, 'base64'), r.until, r.at, r.fence
FROM jsonb_to_recordset(%(steps)s::jsonb) AS r(job_id text, kind text, name text, number integer, value text,
    until double precision, at double precision, fence bigint)
ON CONFLICT (job_id, kind, name) DO NOTHING
