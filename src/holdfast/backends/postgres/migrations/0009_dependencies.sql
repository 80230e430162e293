-- Version 9: jobs can wait for others and remember what they have done, and a dead job can stop its group.

CREATE TABLE holdfast.edges (                            -- the parents that a job waits for
    parent text COLLATE "C" NOT NULL,
    child  text COLLATE "C" NOT NULL,
    status smallint NOT NULL CHECK (status IN (0, 1, 2)),  -- open, failed, met
    PRIMARY KEY (parent, child)
) WITH (fillfactor = 80);
CREATE INDEX edges_status ON holdfast.edges (parent, status, child);
CREATE INDEX edges_child ON holdfast.edges (child, parent);

CREATE TABLE holdfast.dependents (                       -- what a job with parents wants, and its edges by number
    child   text COLLATE "C" PRIMARY KEY,
    pending integer NOT NULL CHECK (pending >= 0),       -- edges that are not met
    failed  integer NOT NULL CHECK (failed >= 0),        -- edges that failed
    policy  text NOT NULL CHECK (policy IN ('bury', 'cancel', 'run')),
    delay   double precision,
    due_at  double precision
) WITH (fillfactor = 50);

CREATE TABLE holdfast.propagating (                      -- parents whose edges may not be in line with their state yet
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent text COLLATE "C" NOT NULL UNIQUE
);

-- What becomes of a strict group when one of its jobs dies. A dead job that is held stops its group: it stays in play.
ALTER TABLE holdfast.queues ADD COLUMN on_dead text NOT NULL DEFAULT 'go_on' CHECK (on_dead IN ('go_on', 'stop'));
DROP INDEX holdfast.jobs_in_play;
CREATE INDEX jobs_in_play ON holdfast.jobs (queue, grp)
    WHERE grp IS NOT NULL AND (state IN ('ready', 'running') OR (state IN ('scheduled', 'dead') AND held));

CREATE TABLE holdfast.steps (                            -- what jobs remember between their attempts
    job_id text COLLATE "C" NOT NULL,
    kind   text COLLATE "C" NOT NULL CHECK (kind IN ('signal', 'sleep', 'state', 'step', 'version', 'wait')),
    name   text COLLATE "C" NOT NULL,
    number integer NOT NULL CHECK (number >= 0),         -- place among the calls of the handler, 0 for none
    value  bytea,
    until  double precision,                             -- when a sleep or a wait is over
    at     double precision NOT NULL,
    fence  bigint NOT NULL,                              -- of the lease that stored it
    PRIMARY KEY (job_id, kind, name)
);
