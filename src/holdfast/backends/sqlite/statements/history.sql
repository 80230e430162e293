-- history: roll-ups by minute and hour, the newest events, and the numbers of the workers' recordings.

-- == record: add counts and keep events. Runs inside the one write transaction.

-- :: number
-- No row means that this call, or a later one, was made before.
INSERT INTO holdfast_recordings (worker, number, at) VALUES (:worker, :number, :now)
ON CONFLICT (worker) DO UPDATE SET number = excluded.number, at = excluded.at WHERE number < excluded.number

-- :: forget
DELETE FROM holdfast_recordings WHERE at < ?

-- :: rollup
SELECT waits, runs FROM holdfast_rollups
WHERE span = ? AND at = ? AND queue = ? AND task = ? AND worker = ? AND outcome = ?

-- :: add
INSERT INTO holdfast_rollups (span, at, queue, task, worker, outcome, waits, runs, count)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (span, at, queue, task, worker, outcome)
DO UPDATE SET count = count + excluded.count, waits = excluded.waits, runs = excluded.runs

-- :: prune
DELETE FROM holdfast_rollups WHERE (span, at, queue, task, worker, outcome) IN (
    SELECT span, at, queue, task, worker, outcome FROM holdfast_rollups
    WHERE span = ? AND at < ? ORDER BY at LIMIT ?)

-- :: event
INSERT INTO holdfast_events (at, name, body) VALUES (?, ?, ?)

-- :: trim
DELETE FROM holdfast_events WHERE position <= (SELECT max(position) FROM holdfast_events) - @EVENTS_KEPT_MAX

-- == history: what was recorded. Never writes.

-- :: rollups
SELECT at, queue, task, worker, outcome, count, waits, runs FROM holdfast_rollups
WHERE span = :span AND at >= :since AND at < :until AND (worker <> '') = :workers
  AND (:queue IS NULL OR queue = :queue) AND (:task IS NULL OR task = :task)
ORDER BY at, queue, task, worker, outcome

-- :: events
SELECT position, at, name, body FROM holdfast_events WHERE position > ? ORDER BY position LIMIT ?

-- :: positions
SELECT COALESCE((SELECT min(position) FROM holdfast_events), 0),
       COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_events'), 0)
