-- cancel: an unstarted job ends here; a running one is only marked, and its slot is freed when its handler stopped.
-- Here too: how an operator's verb takes hold of one job, and how refusals are said.

-- :: call
SELECT holdfast.cancel(%(id)s, %(now)s)::text

-- :: function_refuse
CREATE OR REPLACE FUNCTION holdfast.refuse(code text, facts jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'refused', DETAIL = facts::text;
END $$

-- :: function_refuse_state
-- `facts`: beside the state, a live job that holds its key (live_id), or the one its dead letter belongs to (heir_id).
CREATE OR REPLACE FUNCTION holdfast.refuse_state(j holdfast.jobs, verb text, facts jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql AS $$
    SELECT holdfast.refuse('HF002', facts || jsonb_build_object('job_id', j.id, 'verb', verb, 'state', j.state))
$$

-- :: function_job_to_change
CREATE OR REPLACE FUNCTION holdfast.job_to_change(named text) RETURNS holdfast.jobs LANGUAGE plpgsql AS $$
DECLARE
    seen holdfast.jobs;
    j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules();
    SELECT * INTO seen FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named);
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'job')); END IF;
    IF seen.key IS NOT NULL THEN PERFORM holdfast.lock_keys(holdfast.key_names(seen)); END IF;
    IF seen.grp IS NOT NULL THEN
        PERFORM holdfast.lock_groups(ARRAY[ROW(seen.queue, seen.grp)::holdfast.place]);
    END IF;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'job')); END IF;
    IF j.grp IS DISTINCT FROM seen.grp THEN  -- replaced meanwhile: the call is made anew
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN j;
END $$

-- :: function_job_changed
CREATE OR REPLACE FUNCTION holdfast.job_changed(j holdfast.jobs, at double precision)
RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.keep_up(at);
    IF j.grp IS NOT NULL THEN
        PERFORM holdfast.refill_groups(ARRAY[ROW(j.queue, j.grp)::holdfast.place], at);
    END IF;
    RETURN (SELECT holdfast.job_record(r) FROM holdfast.jobs r WHERE r.seq = j.seq);
END $$

-- :: function_cancel
CREATE OR REPLACE FUNCTION holdfast.cancel(named text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    IF j.state IN ('succeeded', 'dead') THEN
        PERFORM holdfast.refuse_state(j, 'cancel');
    ELSIF j.state = 'running' THEN
        UPDATE holdfast.jobs SET cancel_requested = true WHERE seq = j.seq;
    ELSIF j.state <> 'cancelled' THEN
        PERFORM holdfast.refuse_sealed();
        PERFORM holdfast.finish(j, 'cancelled', 0, 0, 0, 0, NULL, 86400, at);
    END IF;
    RETURN holdfast.job_changed(j, at);
END $$
