-- prune: remove finished jobs past their retention. A dead job that holds its letter has no prune_at.
-- Safe against a rival: rows another sweep is removing, or a revival holds, are skipped.

-- :: call
SELECT holdfast.prune(%(limit)s, %(older_than)s::float8, %(now)s)

-- :: function_prune
CREATE OR REPLACE FUNCTION holdfast.prune(most integer, older_than double precision, given double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    past bigint[];
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    IF older_than IS NULL THEN
        past := ARRAY(SELECT seq FROM holdfast.jobs WHERE prune_at IS NOT NULL AND prune_at <= at
                      ORDER BY prune_at LIMIT most FOR UPDATE SKIP LOCKED);
    ELSE
        past := ARRAY(SELECT seq FROM holdfast.jobs
                      WHERE prune_at IS NOT NULL AND finished_at <= at - greatest(older_than, 600)
                      LIMIT most FOR UPDATE SKIP LOCKED);
    END IF;
    DELETE FROM holdfast.logs WHERE job_seq = ANY (past);
    DELETE FROM holdfast.jobs WHERE seq = ANY (past);
    RETURN cardinality(past);
END $$
