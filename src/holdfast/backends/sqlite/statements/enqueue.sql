-- enqueue: store new jobs. Takes one row per job. A row count of 0 means that the id is known, another job holds the
-- key, or the store is sealed. Safe against concurrent callers: the unique indexes on ids and held keys decide, inside
-- the writer's transaction.

-- :: fragment new_row
-- The columns of enqueue.row_of.
id, task, queue, state, priority, grp, key, lane, turn, max_stalls, created_at, due_at, expires_at, args, revival,
options, rank, body

-- :: fragment whole_row
-- The same, and the columns of enqueue.beyond.
@new_row, holds_key, key_queue, key_started, key_window, due_max, dropped, ordinal

-- :: insert
INSERT INTO holdfast_jobs (@new_row)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: insert_whole
INSERT INTO holdfast_jobs (@whole_row)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- :: insert_unknown
-- While ids of deleted jobs are remembered. ?11 is the time.
INSERT INTO holdfast_jobs (@whole_row)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
       ?24, ?25
WHERE NOT EXISTS (SELECT 1 FROM holdfast_remembered WHERE id = ?1 AND until > ?11)
ON CONFLICT DO NOTHING

-- :: body
-- The arguments of a job that was stored without them.
INSERT OR REPLACE INTO holdfast_bodies (seq, args) SELECT seq, ? FROM holdfast_jobs WHERE id = ?

-- :: known
SELECT 1 FROM holdfast_jobs WHERE id = ?1
UNION ALL SELECT 1 FROM holdfast_remembered WHERE id = ?1 AND until > ?2

-- :: order_window
SELECT order_window FROM holdfast_queues WHERE name = ?

-- :: waits
SELECT state = 'waiting' FROM holdfast_jobs WHERE id = ?

-- :: key_holder
SELECT seq, id, queue, state, grp, held, created_at, key_window, due_max, priority, ordinal, turn, due_at
FROM holdfast_jobs INDEXED BY holdfast_jobs_key
WHERE holds_key = 1 AND key_queue = ? AND task = ? AND key = ?

-- :: free_key
UPDATE holdfast_jobs SET holds_key = 0 WHERE seq = ?

-- :: extend
-- A later call prolongs the window of the key; a finished job is kept as long.
UPDATE holdfast_jobs
SET key_window = max(key_window, :window), prune_at = max(prune_at, created_at + max(key_window, :window))
WHERE seq = :seq

-- :: replace
UPDATE holdfast_jobs
SET state = 'scheduled', lane = 0, turn = NULL, priority = :priority, held = held AND grp IS :grp, grp = :grp,
    max_stalls = max(:max_stalls, stalls), due_at = :due_at, expires_at = :expires_at, args = :args, body = :body,
    revival = :revival, options = :options, key_started = :key_started, key_window = :key_window, dropped = :dropped,
    ordinal = :ordinal
WHERE seq = :seq AND state IN ('scheduled', 'waiting', 'ready')

-- :: joined
INSERT INTO holdfast_jobs (@whole_row)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
       ?24, ?25
WHERE NOT EXISTS (SELECT 1 FROM holdfast_seal WHERE closed = 1)  -- checked and inserted in one statement
  AND NOT EXISTS (SELECT 1 FROM holdfast_remembered WHERE id = ?1 AND until > ?11)
ON CONFLICT DO NOTHING
