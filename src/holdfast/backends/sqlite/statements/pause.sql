-- pause: of a queue, a group or a task; who, when and why are kept.

-- :: store
INSERT INTO holdfast_pauses (kind, queue, name, reason, paused_by, paused_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: park
UPDATE holdfast_jobs SET lane = :parked WHERE task = :task AND state = 'ready'

-- :: unpark
UPDATE holdfast_jobs SET lane = grp IS NOT NULL WHERE task = :task AND state = 'ready'

-- :: remove
DELETE FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast_pauses ORDER BY kind, queue, name
