-- cancel: an unstarted job ends here; a running one is only marked, and its slot is freed when its handler stopped.

-- :: job
SELECT seq, id, task, queue, state, grp, key, revival, errors, attempts, fence, priority, held, dropped, holds_key,
       key_queue
FROM holdfast_jobs WHERE id = ?

-- :: mark
UPDATE holdfast_jobs SET cancel_requested = 1 WHERE seq = ? AND state = 'running'
