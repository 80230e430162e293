-- Version 8: what a job's row does not show of its timeline: releases, snoozes, operators' verbs. Only a job that had one
-- of these has a value; a job that succeeds at once costs nothing more.

ALTER TABLE holdfast_jobs ADD COLUMN marks TEXT;                              -- JSON of records.Mark, oldest first

-- Attempts that ended in a minute or an hour: counts, and times by bucket (rollups.py).
CREATE TABLE holdfast_rollups (
    span    TEXT    NOT NULL CHECK (span IN ('minute', 'hour')),
    at      INTEGER NOT NULL,                            -- its start
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    worker  TEXT    NOT NULL,                            -- '' unless it is a worker's, without queue and task
    outcome TEXT    NOT NULL,
    count   INTEGER NOT NULL,
    waits   TEXT    NOT NULL,                            -- JSON array
    runs    TEXT    NOT NULL,
    PRIMARY KEY (span, at, queue, task, worker, outcome)
) STRICT, WITHOUT ROWID;

-- The newest events, for followers in any process.
CREATE TABLE holdfast_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       REAL NOT NULL,
    name     TEXT NOT NULL,
    body     BLOB NOT NULL                               -- JSON
) STRICT;

-- The number of each worker's last recording, so that a repeated one adds nothing.
CREATE TABLE holdfast_recordings (worker TEXT PRIMARY KEY, number INTEGER NOT NULL, at REAL NOT NULL) STRICT;
