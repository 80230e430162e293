-- clock: the store's time and its counter.

-- == now: the store's clock, and the counter behind fences and turns that keeps up with it.
-- Concurrency: the counter is a sequence, advanced under an advisory lock that is released at once.

-- :: function_store_now
CREATE OR REPLACE FUNCTION holdfast.store_now(given double precision) RETURNS double precision LANGUAGE sql AS $$
    SELECT coalesce(given, extract(epoch FROM clock_timestamp())::double precision)
$$

-- :: function_keep_up
-- Fences and turns come from one sequence that is never below the clock in microseconds, so they grow even if the store
-- was restored from a backup. It is advanced 0.1 s at a time under an advisory lock. Rolling back the sub-transaction
-- releases the lock at once (setval is not rolled back), so nobody waits for a commit, and a late rival cannot set the
-- sequence back.
CREATE OR REPLACE FUNCTION holdfast.keep_up(at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE micros bigint := ceil(at * 1000000);
BEGIN
    IF (SELECT last_value FROM holdfast.ticks) >= micros THEN RETURN; END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('holdfast.ticks'), 0);
        PERFORM setval('holdfast.ticks', greatest((SELECT last_value FROM holdfast.ticks), micros + 100000));
        RAISE EXCEPTION USING ERRCODE = 'HF000';
    EXCEPTION WHEN SQLSTATE 'HF000' THEN NULL;
    END;
END $$
