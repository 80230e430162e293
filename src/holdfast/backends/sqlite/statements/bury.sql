-- bury: the step that makes or merges the one dead letter of a logical job, in the transaction that ends the job.
-- The arguments go from row to row; the letter's earlier ones come out only where they differ.

-- :: letter
SELECT job_id, NULLIF(args, (SELECT args FROM holdfast_jobs WHERE seq = ?)), failed_at, reason, error, history, cycles
FROM holdfast_letters WHERE logical = ?

-- :: insert
INSERT INTO holdfast_letters (logical, job_id, task, queue, key, grp, args, failure_count, first_failed_at, failed_at,
                              reason, error, history, cycles, revive_at, revived_at)
SELECT :logical, :job_id, :task, :queue, :key, :grp, args, 1, :now, :now, :reason, :error, NULL, 0, :revive_at, NULL
FROM holdfast_jobs WHERE seq = :seq

-- :: merge
UPDATE holdfast_letters
SET job_id = :job_id, grp = :grp, args = (SELECT args FROM holdfast_jobs WHERE seq = :seq), failure_count = failure_count + 1, failed_at = :now, reason = :reason,
    error = :error, history = :history, revive_at = :revive_at, revived_at = NULL
WHERE logical = :logical

-- :: supersede
UPDATE holdfast_jobs SET reason = 'superseded', prune_at = max(?, COALESCE(holds_key * (created_at + key_window), 0))
WHERE id = ? AND state = 'dead'
