-- edit: an operator changes one unstarted job, or deletes one that is not running.

-- == edit: change an unstarted job. Runs inside the one write transaction, so a claim comes before or after it.

-- :: job
SELECT seq, id, task, queue, state, grp, key, priority, held, turn, due_at, expires_at, holds_key, key_queue,
       ordinal
FROM holdfast_jobs WHERE id = ?

-- :: args
UPDATE holdfast_jobs SET args = ?, body = ? WHERE seq = ?

-- :: no_body
DELETE FROM holdfast_bodies WHERE seq = ?

-- :: body
INSERT INTO holdfast_bodies (seq, args) VALUES (?, ?)

-- :: due
UPDATE holdfast_jobs SET due_at = ?, expires_at = ? WHERE seq = ?

-- :: move
UPDATE holdfast_jobs
SET state = 'scheduled', lane = 0, turn = NULL, queue = :queue, grp = :grp, priority = :priority, ordinal = :ordinal,
    held = :held, key_queue = :key_queue
WHERE seq = :seq

-- :: letter
UPDATE holdfast_letters SET logical = ?, queue = ?, grp = ? WHERE job_id = ?

-- == delete: remove a job that is not running. Its id is remembered for as long as that of a finished job.

-- :: remember
INSERT INTO holdfast_remembered (id, until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET until = excluded.until

-- :: forget
DELETE FROM holdfast_remembered WHERE id IN (SELECT id FROM holdfast_remembered WHERE until <= ? LIMIT ?)
