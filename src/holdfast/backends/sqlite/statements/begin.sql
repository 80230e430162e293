-- begin: mark a lease begun before its handler starts.
-- Fenced by (id, token); a cancel asked for refuses it.

-- :: mark
UPDATE holdfast_jobs SET begun = 1 WHERE id = ? AND token = ? AND state = 'running' AND cancel_requested = 0

-- :: held
SELECT cancel_requested FROM holdfast_jobs WHERE id = ? AND token = ? AND state = 'running'
