-- Version 6: ids of jobs that an operator deleted stay known for a while, and workers can be given commands.

CREATE TABLE holdfast.remembered (                       -- ids of `ids` that have no job any more
    id    text COLLATE "C" PRIMARY KEY,
    until double precision NOT NULL
);
CREATE INDEX remembered_until ON holdfast.remembered (until);

CREATE TABLE holdfast.commands (                         -- removed with the worker's row
    worker text COLLATE "C" NOT NULL REFERENCES holdfast.workers ON DELETE CASCADE,
    id     text COLLATE "C" NOT NULL,
    at     double precision NOT NULL,
    done   boolean NOT NULL,
    record jsonb NOT NULL,                               -- records.Command
    PRIMARY KEY (worker, id)
);
