-- discard: an operator removes a dead letter; its job stays dead and may be pruned.

-- :: letter
DELETE FROM holdfast_letters WHERE job_id = ?

-- :: job
UPDATE holdfast_jobs SET reason = 'discarded', prune_at = max(?, COALESCE(holds_key * (created_at + key_window), 0))
WHERE id = ? AND state = 'dead'
