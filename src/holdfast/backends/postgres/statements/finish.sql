-- finish: what is written of a job whose attempt is over: for good, or until it is due again.
-- Safe against a rival: the caller has locked the job's row and its group.

-- :: function_counted
CREATE OR REPLACE FUNCTION holdfast.counted(number integer, more integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT least(number, 2147483647 - more) + more  -- a counter at its end stays there: it must not stop a store
$$

-- :: function_put_off
CREATE OR REPLACE FUNCTION holdfast.put_off(j holdfast.jobs, delay double precision, attempt integer, failed integer,
                                            at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.jobs
    SET state = 'scheduled', attempts = holdfast.counted(attempts, attempt), failures = holdfast.counted(failures, failed),
        due_at = at + greatest(0, delay), held = grp IS NOT NULL AND holdfast.is_strict(queue, grp), errors = j.errors,
        expires_at = CASE WHEN attempt = 0 THEN expires_at END,
        turn = NULL, token = NULL, worker = NULL, claim_call = NULL, suspect = suspect AND attempt = 0
    WHERE seq = j.seq;
END $$

-- :: function_finish
CREATE OR REPLACE FUNCTION holdfast.finish(j holdfast.jobs, ending text, attempt integer, failed integer,
    stalled integer, shared integer, why text, retain double precision, at double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN  -- a dead job has no time to be pruned: it holds its letter
    UPDATE holdfast.jobs
    SET state = ending, attempts = holdfast.counted(attempts, attempt), failures = holdfast.counted(failures, failed), stalls = holdfast.counted(stalls, stalled),
        shared_stalls = holdfast.counted(shared_stalls, shared), suspect = stalled + shared > 0 OR (suspect AND attempt = 0),
        finished_at = at, reason = why, errors = j.errors, token = NULL, worker = NULL, claim_call = NULL, held = false,
        prune_at = CASE WHEN ending <> 'dead' THEN greatest(at + greatest(retain, 600), holdfast.window_ends(j)) END,
        holds_key = holds_key AND key_window IS NOT NULL
    WHERE seq = j.seq;
    IF ending <> 'dead' THEN PERFORM holdfast.close_letter(holdfast.logical_name(j), at), holdfast.retain(ARRAY[j.seq]); END IF;
END $$

-- :: function_is_strict
CREATE OR REPLACE FUNCTION holdfast.is_strict(queued text, grp text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT starts_with(grp, 'one-at-a-time:')  -- SERIAL_PREFIX
        OR coalesce((SELECT group_order = 'strict' FROM holdfast.queues WHERE name = queued), true)
$$
