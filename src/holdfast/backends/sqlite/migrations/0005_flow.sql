-- Version 5: limits and rates of queues and tasks, fair turns, keys that hold otherwise, cron entries, retention by
-- rule. Whoever uses none of it must not pay: the new columns are 0 or NULL then, which take a byte each, and the new
-- indexes leave such a job out by one look at a number.

ALTER TABLE holdfast_jobs ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;         -- of a ready job: highest first
ALTER TABLE holdfast_jobs ADD COLUMN holds_key INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_jobs ADD COLUMN key_queue TEXT;                          -- where its key is one: '' in all queues
ALTER TABLE holdfast_jobs ADD COLUMN key_started INTEGER NOT NULL DEFAULT 0;  -- it holds its key until its first lease
ALTER TABLE holdfast_jobs ADD COLUMN key_window REAL;
ALTER TABLE holdfast_jobs ADD COLUMN due_max REAL;
ALTER TABLE holdfast_jobs ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;      -- when it expires: cancelled, not dead
-- A limit counts it while it runs, or its task keeps only so many finished ones. Set and never unset: what is counted
-- is read off its state, queue and task.
ALTER TABLE holdfast_jobs ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;

UPDATE holdfast_jobs SET rank = priority WHERE state = 'ready';
UPDATE holdfast_jobs SET key_queue = queue WHERE key IS NOT NULL;
UPDATE holdfast_jobs SET holds_key = 1
    WHERE key IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready', 'running');

-- One job holds a key.
DROP INDEX holdfast_jobs_live_key;
CREATE UNIQUE INDEX holdfast_jobs_key ON holdfast_jobs (key_queue, task, key) WHERE holds_key = 1;

DROP INDEX holdfast_jobs_ready;
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, lane, rank DESC, turn, seq) WHERE state = 'ready';
-- A lane of its own for every task that has a limit or a rate. Not by state, so that jobs of other lanes are never
-- asked: a job that leaves this lane leaves the number, too.
CREATE INDEX holdfast_jobs_apart ON holdfast_jobs (queue, task, rank DESC, turn, seq) WHERE lane = 3;
-- What runs under a limit, and what a task keeps of its finished jobs; then what a group has in play, with the last turn
-- given. All that is asked is in the index, its own condition too, so that no row is read to count it.
CREATE INDEX holdfast_jobs_counted ON holdfast_jobs (state, task, finished_at, seq, queue, counted) WHERE counted = 1;
DROP INDEX holdfast_jobs_in_play;
CREATE INDEX holdfast_jobs_in_play ON holdfast_jobs (queue, grp, state, turn, held)
    WHERE grp IS NOT NULL AND (state IN ('ready', 'running') OR (state = 'scheduled' AND held = 1));
CREATE INDEX holdfast_letters_task ON holdfast_letters (task, failed_at);

ALTER TABLE holdfast_queues ADD COLUMN job_limit INTEGER CHECK (job_limit >= 1);
ALTER TABLE holdfast_queues ADD COLUMN rate TEXT;                             -- JSON of rates.Rate, here and below
ALTER TABLE holdfast_queues ADD COLUMN group_rate TEXT;
ALTER TABLE holdfast_queues ADD COLUMN aging REAL;
CREATE INDEX holdfast_queues_flow ON holdfast_queues (name)
    WHERE job_limit IS NOT NULL OR rate IS NOT NULL OR aging IS NOT NULL;

CREATE TABLE holdfast_tasks (
    name              TEXT PRIMARY KEY,
    job_limit         INTEGER CHECK (job_limit >= 1),
    rate              TEXT,
    apart             INTEGER NOT NULL CHECK (apart IN (0, 1)),
    retain_count      INTEGER,
    retain_dead       REAL,
    retain_dead_count INTEGER
) STRICT;

CREATE TABLE holdfast_overrides (                        -- an operator's word on a queue, a group or a task
    kind      TEXT NOT NULL CHECK (kind IN ('queue', 'group', 'task')),
    queue     TEXT NOT NULL,
    name      TEXT NOT NULL,                             -- group or task
    job_limit INTEGER CHECK (job_limit >= 1),
    rate      TEXT,
    PRIMARY KEY (kind, queue, name),
    CHECK (job_limit IS NOT NULL OR rate IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO holdfast_overrides (kind, queue, name, job_limit)
    SELECT 'group', queue, name, group_limit FROM holdfast_groups;
DROP TABLE holdfast_groups;

CREATE TABLE holdfast_flows (                            -- buckets, by the same names
    kind        TEXT NOT NULL CHECK (kind IN ('queue', 'group', 'task')),
    queue       TEXT NOT NULL,
    name        TEXT NOT NULL,
    spent_until REAL NOT NULL,
    shut_until  REAL NOT NULL,
    wakes_at    REAL,
    PRIMARY KEY (kind, queue, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_flows_wakes ON holdfast_flows (wakes_at) WHERE wakes_at IS NOT NULL;

CREATE TABLE holdfast_entries (                          -- cron entries
    name     TEXT PRIMARY KEY,
    version  INTEGER NOT NULL CHECK (version >= 1),
    declared INTEGER NOT NULL CHECK (declared IN (0, 1)),
    record   BLOB    NOT NULL                            -- JSON of entries.CronEntry
) STRICT;
