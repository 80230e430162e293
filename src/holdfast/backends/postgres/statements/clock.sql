-- clock: the store's time and its counter.

-- == now: the store's clock, and the counter behind fences and turns that keeps up with it.
-- Safe against a rival: the counter is a sequence, moved under a lock that is given back at once.

-- :: function_store_now
CREATE OR REPLACE FUNCTION holdfast.store_now(given double precision) RETURNS double precision LANGUAGE sql AS $$
    SELECT coalesce(given, extract(epoch FROM clock_timestamp())::double precision)
$$

-- :: function_keep_up
-- Fences and turns are numbers of one sequence that is never below the clock in microseconds, so they grow even if the
-- store was rolled back. It is moved 0.1 s ahead at a time, under a lock that a sub-transaction gives back at once
-- (setval is not undone by it), so nobody waits for a commit and the sequence cannot be set back by a late rival.
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
