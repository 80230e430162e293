-- pause: of a queue, a group or a task; who, when and why are kept.

-- :: store
INSERT INTO holdfast_pauses (kind, queue, name, reason, paused_by, paused_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: park
UPDATE holdfast_jobs SET lane = ?1 WHERE task = ?2 AND state = 'ready'

-- :: unpark
UPDATE holdfast_jobs SET lane = CASE WHEN grp IS NULL THEN 0 ELSE ?1 END WHERE task = ?2 AND state = 'ready'

-- :: remove
DELETE FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast_pauses ORDER BY kind, queue, name
