-- export: pieces of the store in a stable order, for another store. Never writes.
-- Takes the place to go on after and a bound; answers rows in the shape read.sql has for records.

-- :: jobs
SELECT seq, id, task, queue, state, args, priority, grp, key, attempts, failures, stalls, max_stalls, created_at,
       due_at, expires_at, started_at, finished_at, fence, worker, begun, held, cancel_requested, progress,
       progress_text, value, reason, errors, revival, options, shared_stalls, suspect, holds_key,
       key_queue, key_started, key_window, due_max, dropped, turn, rank, lane, prune_at
FROM holdfast_jobs WHERE seq > ? ORDER BY seq LIMIT ?

-- :: logs
SELECT job_seq, at, text FROM holdfast_logs WHERE job_seq > ? AND job_seq <= ? ORDER BY job_seq, line

-- :: tick
SELECT COALESCE(max(tick), 0) FROM holdfast_ticks
