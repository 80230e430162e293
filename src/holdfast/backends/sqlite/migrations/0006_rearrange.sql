-- Version 6: an operator can give a task a lane of its own, and a changed rule rearranges its backlog piecewise.

CREATE TABLE holdfast_overrides_new (                    -- as before, with `apart`, which may be all that is said
    kind      TEXT NOT NULL CHECK (kind IN ('queue', 'group', 'task')),
    queue     TEXT NOT NULL,
    name      TEXT NOT NULL,                             -- group or task
    job_limit INTEGER CHECK (job_limit >= 1),
    rate      TEXT,
    apart     INTEGER CHECK (apart IS NULL OR (apart = 1 AND kind = 'task')),
    PRIMARY KEY (kind, queue, name),
    CHECK (job_limit IS NOT NULL OR rate IS NOT NULL OR apart IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO holdfast_overrides_new (kind, queue, name, job_limit, rate)
    SELECT kind, queue, name, job_limit, rate FROM holdfast_overrides;
DROP TABLE holdfast_overrides;
ALTER TABLE holdfast_overrides_new RENAME TO holdfast_overrides;

-- What a changed rule has left to do, and how far it has come. Empty almost always: every claim asks.
CREATE TABLE holdfast_rearranging (
    kind  TEXT NOT NULL CHECK (kind IN ('lanes', 'groups', 'counts')),
    queue TEXT NOT NULL,                                 -- of groups; '' otherwise
    place TEXT NOT NULL,                                 -- JSON, see rearrange.py
    PRIMARY KEY (kind, queue)
) STRICT, WITHOUT ROWID;

-- Rows that cannot be read, taken out whole so that they stop nobody.
CREATE TABLE holdfast_quarantine (
    id     INTEGER PRIMARY KEY,
    place  TEXT NOT NULL,                                -- the table it was in, without the prefix
    name   TEXT NOT NULL,                                -- as far as it can be read
    fields TEXT NOT NULL,                                -- which of them are garbled
    at     REAL NOT NULL,
    record TEXT NOT NULL                                 -- JSON: the whole row, bytes as {"hex": …}
) STRICT;
