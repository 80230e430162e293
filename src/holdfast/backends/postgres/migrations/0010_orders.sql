-- Version 10: the jobs of a group can have an order of their caller's own, and wait a while for lower ones; and a group
-- can have a weight.

ALTER TABLE holdfast.jobs ADD COLUMN ordinal bigint;     -- NULL: by enqueue, before those that have one
ALTER TABLE holdfast.queues ADD COLUMN order_window double precision CHECK (order_window > 0);
DROP INDEX holdfast.jobs_waiting;
CREATE INDEX jobs_waiting ON holdfast.jobs (queue, grp, held DESC, priority DESC, ordinal NULLS FIRST, seq)
    WHERE state = 'waiting';
-- Jobs with an order that wait in their group, or for lower orders; those that were leased before wait for something else.
CREATE INDEX jobs_ordered ON holdfast.jobs (queue, grp, state, priority DESC, ordinal, seq)
    WHERE ordinal IS NOT NULL AND (state = 'waiting' OR (state = 'scheduled' AND NOT held AND fence = 0));

ALTER TABLE holdfast.overrides ADD COLUMN weight integer CHECK (weight IS NULL OR (weight >= 1 AND kind = 'group'));
