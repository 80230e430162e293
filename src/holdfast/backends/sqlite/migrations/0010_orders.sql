-- Version 10: the jobs of a group can have an order of their caller's own, and wait a while for lower ones; and a group
-- can have a weight.

ALTER TABLE holdfast_jobs ADD COLUMN ordinal INTEGER;    -- NULL: by enqueue, before those that have one
ALTER TABLE holdfast_queues ADD COLUMN order_window REAL CHECK (order_window > 0);
DROP INDEX holdfast_jobs_waiting;
CREATE INDEX holdfast_jobs_waiting ON holdfast_jobs (queue, grp, held DESC, priority DESC, ordinal, seq, state)
    WHERE state = 'waiting';
-- Jobs that may wait for lower orders to arrive; those that were leased before wait for something else.
CREATE INDEX holdfast_jobs_staged ON holdfast_jobs (queue, grp, priority DESC, ordinal, seq)
    WHERE state = 'scheduled' AND ordinal IS NOT NULL AND held = 0 AND fence = 0;

CREATE TABLE holdfast_overrides_new (                    -- as before, with `weight`, which may be all that is said
    kind      TEXT NOT NULL CHECK (kind IN ('queue', 'group', 'task')),
    queue     TEXT NOT NULL,
    name      TEXT NOT NULL,                             -- group or task
    job_limit INTEGER CHECK (job_limit >= 1),
    rate      TEXT,
    apart     INTEGER CHECK (apart IS NULL OR (apart = 1 AND kind = 'task')),
    weight    INTEGER CHECK (weight IS NULL OR (weight >= 1 AND kind = 'group')),
    PRIMARY KEY (kind, queue, name),
    CHECK (job_limit IS NOT NULL OR rate IS NOT NULL OR apart IS NOT NULL OR weight IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO holdfast_overrides_new (kind, queue, name, job_limit, rate, apart)
    SELECT kind, queue, name, job_limit, rate, apart FROM holdfast_overrides;
DROP TABLE holdfast_overrides;
ALTER TABLE holdfast_overrides_new RENAME TO holdfast_overrides;
