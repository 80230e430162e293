-- Version 7: finding jobs by queue or task and counting them by queue and state no longer read every job.

-- One entry per job, written when it is enqueued and removed when it is pruned: neither name ever changes. A job's seq
-- ends every entry, so the newest jobs of a queue's task are found at once; whoever names only one of the two goes from
-- pair to pair.
CREATE INDEX holdfast_jobs_names ON holdfast_jobs (queue, task);
-- What the other indexes leave uncounted but success, which is the rest: dead, cancelled, and states nobody knows. Not
-- by NOT IN: for a list of more than two SQLite makes a table whenever a job is written.
CREATE INDEX holdfast_jobs_rare ON holdfast_jobs (queue, state)
    WHERE state <> 'ready' AND state <> 'running' AND state <> 'succeeded' AND state <> 'scheduled'
      AND state <> 'waiting';
-- With the state they are about, which older versions of SQLite otherwise read from each job to count it; not that
-- of ready jobs, which every job goes through. And of scheduled jobs also those without a group, so that a queue's can
-- be counted.
DROP INDEX holdfast_jobs_waiting;
CREATE INDEX holdfast_jobs_waiting ON holdfast_jobs (queue, grp, held DESC, priority DESC, seq, state)
    WHERE state = 'waiting';
DROP INDEX holdfast_jobs_group_due;
CREATE INDEX holdfast_jobs_group_due ON holdfast_jobs (queue, grp, due_at, state) WHERE state = 'scheduled';
