-- prune: remove finished jobs past their retention. A dead job that holds its letter has no prune_at.
-- Takes the time and a limit; what a task's rule does not keep is found oldest first, so a pass costs what it removes.

-- :: fragment may_go(j, before, now)
-- Whether a finished job may be removed before its time: it finished early enough, and the window of its key has passed.
@j.finished_at <= @before AND NOT (@j.holds_key = 1 AND COALESCE(@window_end(@j), 0) > @now)

-- :: past
SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_prune
WHERE prune_at IS NOT NULL AND prune_at <= ? ORDER BY prune_at LIMIT ?

-- :: older
SELECT seq FROM holdfast_jobs AS j INDEXED BY holdfast_jobs_prune
WHERE prune_at IS NOT NULL AND @may_go(j, ?, ?)
LIMIT ?

-- :: id
SELECT id FROM holdfast_jobs WHERE seq = ?

-- :: job
DELETE FROM holdfast_jobs WHERE seq = ?

-- :: logs
DELETE FROM holdfast_logs WHERE job_seq = ?

-- :: flows
DELETE FROM holdfast_flows
WHERE (kind, queue, name) IN (
    SELECT kind, queue, name FROM holdfast_flows
    WHERE wakes_at IS NULL AND spent_until <= ? AND shut_until <= ? LIMIT ?)

-- :: rules
SELECT name, retain_count, retain_dead, retain_dead_count FROM holdfast_tasks
WHERE retain_count IS NOT NULL OR retain_dead IS NOT NULL OR retain_dead_count IS NOT NULL ORDER BY name

-- :: count_finished
SELECT count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_counted
WHERE counted = 1 AND state IN ('succeeded', 'cancelled') AND task = ?

-- :: finished
SELECT f.seq FROM (
    SELECT seq, finished_at FROM holdfast_jobs INDEXED BY holdfast_jobs_counted
    WHERE counted = 1 AND state = 'succeeded' AND task = :task
    UNION ALL
    SELECT seq, finished_at FROM holdfast_jobs INDEXED BY holdfast_jobs_counted
    WHERE counted = 1 AND state = 'cancelled' AND task = :task
    ORDER BY finished_at, seq LIMIT :excess) AS f JOIN holdfast_jobs j ON j.seq = f.seq
WHERE @may_go(j, :remembered, :now)
LIMIT :limit

-- :: count_dead
SELECT count(*) FROM holdfast_letters WHERE task = ?

-- :: dead
SELECT seq, id FROM (
    SELECT j.seq, j.id, j.state, j.finished_at, j.holds_key, j.created_at, j.key_window
    FROM holdfast_letters l INDEXED BY holdfast_letters_task JOIN holdfast_jobs j ON j.id = l.job_id
    WHERE l.task = :task AND l.failed_at <= :before
    ORDER BY l.failed_at, j.seq LIMIT :excess) AS d
WHERE state = 'dead' AND @may_go(d, :remembered, :now)
LIMIT :limit
