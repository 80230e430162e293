-- slow_down: nothing of a queue starts for so many seconds. Takes the queue and the seconds, returns until when.
-- Safe against a rival: one write that takes the later of two times. A claim under way may still hand out what it found.

-- :: call
SELECT holdfast.slow_down(%(queue)s, %(seconds)s, %(now)s)

-- :: function_slow_down
CREATE OR REPLACE FUNCTION holdfast.slow_down(named text, seconds double precision, given double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    until double precision;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    INSERT INTO holdfast.flows AS f (kind, queue, shut_until) VALUES ('queue', named, at + seconds)
    ON CONFLICT (kind, queue, name) DO UPDATE SET shut_until = greatest(f.shut_until, excluded.shut_until)
    RETURNING shut_until INTO until;
    RETURN until;
END $$
