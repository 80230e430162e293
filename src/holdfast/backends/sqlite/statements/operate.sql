-- operate: what an operator does to single jobs and dead letters.

-- == cancel: an unstarted job ends here; a running one is only marked, and its slot is freed when its handler stops.

-- :: job
SELECT seq, id, task, queue, state, grp, key, revival, errors, attempts, fence, priority, held, dropped, holds_key,
       key_queue
FROM holdfast_jobs WHERE id = ?

-- :: mark
UPDATE holdfast_jobs SET cancel_requested = 1 WHERE seq = ? AND state = 'running' AND cancel_requested = 0

-- == bury: create or merge the one dead letter of a logical job, in the transaction that ends the job.
-- The arguments are copied from row to row; the letter's earlier ones are returned only if they differ.

-- :: letter
SELECT job_id, NULLIF(args, (SELECT @args(j) FROM holdfast_jobs j WHERE seq = ?)), failed_at, reason, error, history, cycles,
       failure_count
FROM holdfast_letters WHERE logical = ?

-- :: insert
INSERT INTO holdfast_letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at,
                              reason, error, history, cycles, revive_at, revived_at)
SELECT :logical, :job_id, :task, :queue, :key, :grp, @args(holdfast_jobs), 1, :now, :now, :reason, :error, NULL, 0, :revive_at, NULL
FROM holdfast_jobs WHERE seq = :seq

-- :: merge
UPDATE holdfast_letters
SET job_id = :job_id, grp = :grp, args = (SELECT @args(j) FROM holdfast_jobs j WHERE seq = :seq),
    failure_count = failure_count + 1, failed_at = :now, reason = :reason, error = :error, history = :history, revive_at = :revive_at, revived_at = NULL
WHERE logical = :logical

-- :: options
SELECT options FROM holdfast_jobs WHERE seq = ?

-- :: copy
-- Scheduled and due, like a job of a caller's own transaction (R60): promote brings it into play.
INSERT INTO holdfast_jobs (@whole_row)
SELECT :id, task, :to, 'scheduled', priority, grp, NULL, 0, NULL, max_stalls, :now, :now, NULL, args, NULL, :options, 0,
       body, 0, NULL, 0, NULL, NULL, 0, ordinal
FROM holdfast_jobs WHERE seq = :seq
ON CONFLICT DO NOTHING

-- :: copy_body
INSERT OR REPLACE INTO holdfast_bodies (seq, args)
SELECT (SELECT seq FROM holdfast_jobs WHERE id = :id), args FROM holdfast_bodies WHERE seq = :seq

-- :: held
SELECT queue, grp FROM holdfast_jobs WHERE id = ? AND state = 'dead' AND held = 1

-- :: let_go
UPDATE holdfast_jobs SET reason = ?, prune_at = @prune_at(?), held = 0
WHERE id = ? AND state = 'dead'

-- == revive: make a finished job claimable again with fresh budgets; one step, safe to repeat.

-- :: letter_of
SELECT logical, job_id, cycles, revived_at FROM holdfast_letters WHERE job_id = ?

-- :: letter_by_logical
SELECT job_id FROM holdfast_letters WHERE logical = ?

-- :: scheduled
UPDATE holdfast_jobs
SET state = 'scheduled', holds_key = key IS NOT NULL, attempts = 0, failures = 0, stalls = 0, shared_stalls = 0,
    suspect = 0, due_at = ?, expires_at = NULL, finished_at = NULL, prune_at = NULL, reason = NULL, value = NULL, turn = NULL,
    cancel_requested = 0, begun = 0, progress = NULL, progress_text = NULL
WHERE seq = ?

-- :: mark
UPDATE holdfast_letters SET revived_at = ?, revive_at = NULL, cycles = cycles + ? WHERE logical = ?

-- :: unset
UPDATE holdfast_letters SET revive_at = NULL WHERE job_id = ?

-- :: due_now
UPDATE holdfast_jobs SET due_at = ? WHERE seq = ?

-- == discard: an operator removes a dead letter; its job stays dead and may be pruned.

-- :: letter
DELETE FROM holdfast_letters WHERE job_id = ?
