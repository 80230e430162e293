-- Version 9: ids of jobs that an operator deleted stay known for a while, and workers can be given commands.

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
