-- prune: remove finished jobs past their retention. A dead job that holds its letter has no prune_at.
-- Safe against a rival: rows another sweep is removing, or a revival holds, are skipped.

-- :: call
WITH past AS MATERIALIZED (
    SELECT seq FROM holdfast.jobs
    WHERE prune_at IS NOT NULL AND prune_at <= (SELECT holdfast.store_now(%(now)s))
    ORDER BY prune_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), lines AS (DELETE FROM holdfast.logs l USING past WHERE l.job_seq = past.seq)
DELETE FROM holdfast.jobs j USING past WHERE j.seq = past.seq

-- :: older
WITH past AS MATERIALIZED (
    SELECT seq FROM holdfast.jobs
    WHERE prune_at IS NOT NULL AND finished_at <= (SELECT holdfast.store_now(%(now)s)) - greatest(%(older_than)s::float8, 600)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), lines AS (DELETE FROM holdfast.logs l USING past WHERE l.job_seq = past.seq)
DELETE FROM holdfast.jobs j USING past WHERE j.seq = past.seq
