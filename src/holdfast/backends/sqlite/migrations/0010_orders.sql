-- Version 10: the jobs of a group can have an order of their caller's own, and wait a while for lower ones.

ALTER TABLE holdfast_jobs ADD COLUMN ordinal INTEGER;    -- NULL: by enqueue, before those that have one
ALTER TABLE holdfast_queues ADD COLUMN order_window REAL CHECK (order_window > 0);
DROP INDEX holdfast_jobs_waiting;
CREATE INDEX holdfast_jobs_waiting ON holdfast_jobs (queue, grp, held DESC, priority DESC, ordinal, seq)
    WHERE state = 'waiting';
-- Jobs that may wait for lower orders to arrive; those that were leased before wait for something else.
CREATE INDEX holdfast_jobs_staged ON holdfast_jobs (queue, grp, priority DESC, ordinal, seq)
    WHERE state = 'scheduled' AND ordinal IS NOT NULL AND held = 0 AND fence = 0;
