-- Version 9: ids of jobs that an operator deleted stay known for a while, workers can be given commands, jobs can wait
-- for others and remember what they have done, and a dead job can stop its group.

CREATE TABLE holdfast_remembered (
    id    TEXT PRIMARY KEY,
    until REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_remembered_until ON holdfast_remembered (until);

-- A worker's row takes its commands along when it goes.
CREATE TABLE holdfast_commands (
    worker TEXT NOT NULL,
    id     TEXT NOT NULL,
    at     REAL NOT NULL,
    done   INTEGER NOT NULL CHECK (done IN (0, 1)),
    record BLOB NOT NULL,                                -- JSON of records.Command
    PRIMARY KEY (worker, id)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER holdfast_commands_go AFTER DELETE ON holdfast_workers
BEGIN
    DELETE FROM holdfast_commands WHERE worker = old.id;
END;

-- The parents that a job waits for. Status: 0 open, 1 failed, 2 met.
CREATE TABLE holdfast_edges (
    parent TEXT    NOT NULL,
    status INTEGER NOT NULL CHECK (status IN (0, 1, 2)),
    child  TEXT    NOT NULL,
    PRIMARY KEY (parent, status, child)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX holdfast_edges_child ON holdfast_edges (child, parent);
-- What a job with parents wants: its edges by number, counted so that a step need not look at all of them.
CREATE TABLE holdfast_dependents (
    child   TEXT PRIMARY KEY,
    pending INTEGER NOT NULL CHECK (pending >= 0),       -- edges that are not met
    failed  INTEGER NOT NULL CHECK (failed >= 0),        -- edges that failed
    policy  TEXT    NOT NULL CHECK (policy IN ('bury', 'cancel', 'run')),
    delay   REAL,
    due_at  REAL
) STRICT, WITHOUT ROWID;
-- Parents whose state changed and whose edges may not be in line with it yet.
CREATE TABLE holdfast_propagating (
    number INTEGER PRIMARY KEY,
    parent TEXT NOT NULL UNIQUE
) STRICT;

-- What becomes of a strict group when one of its jobs dies. A dead job that is held stops its group: it stays in play.
ALTER TABLE holdfast_queues ADD COLUMN on_dead TEXT NOT NULL DEFAULT 'go_on' CHECK (on_dead IN ('go_on', 'stop'));
DROP INDEX holdfast_jobs_in_play;
CREATE INDEX holdfast_jobs_in_play ON holdfast_jobs (queue, grp, state, turn, held)
    WHERE grp IS NOT NULL AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held = 1));

-- What jobs remember between their attempts: steps, sleeps, signals, their state.
CREATE TABLE holdfast_steps (
    job_id TEXT    NOT NULL,
    kind   TEXT    NOT NULL CHECK (kind IN ('signal', 'sleep', 'state', 'step', 'version', 'wait')),
    name   TEXT    NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 0),         -- place among the calls of the handler, 0 for none
    value  BLOB,
    until  REAL,                                         -- when a sleep or a wait is over
    at     REAL    NOT NULL,
    fence  INTEGER NOT NULL,                             -- of the lease that stored it
    PRIMARY KEY (job_id, kind, name)
) STRICT, WITHOUT ROWID;
