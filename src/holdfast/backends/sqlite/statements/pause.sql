-- pause: of a queue, a group or a task; who, when and why are kept.

-- :: store
INSERT INTO holdfast_pauses (kind, queue, name, reason, paused_by, paused_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: remove
DELETE FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?

-- :: all
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast_pauses ORDER BY kind, queue, name

-- :: there
SELECT 1 FROM holdfast_pauses WHERE kind = ? AND queue = ? AND name = ?
