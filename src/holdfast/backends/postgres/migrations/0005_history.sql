-- Version 5: what a job's row does not show of its timeline: releases, snoozes, operators' verbs. Only a job that had one
-- of these has a value; a job that succeeds at once costs nothing more. Functions are made anew from the statement files;
-- those of version 4 go, so that none is left whose signature has changed.

DO $$
DECLARE one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_proc p JOIN pg_class c ON c.oid = 'holdfast.jobs'::regclass
               WHERE p.pronamespace = c.relnamespace AND p.proname <> 'is_sound' LOOP
        EXECUTE format('DROP FUNCTION %s', one);
    END LOOP;
END $$;

ALTER TABLE holdfast.jobs ADD COLUMN marks jsonb;         -- array of records.Mark, oldest first

-- Attempts that ended in a minute or an hour: counts, and times by bucket (rollups.py). Rows of the current minute are
-- updated again and again, so there is room for that on their pages.
CREATE TABLE holdfast.rollups (
    span    text COLLATE "C" NOT NULL CHECK (span IN ('minute', 'hour')),
    at      bigint NOT NULL,                             -- its start
    queue   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    worker  text COLLATE "C" NOT NULL,                   -- '' unless it is a worker's, without queue and task
    outcome text COLLATE "C" NOT NULL,
    count   bigint NOT NULL,
    waits   bigint[] NOT NULL,
    runs    bigint[] NOT NULL,
    PRIMARY KEY (span, at, queue, task, worker, outcome)
) WITH (fillfactor = 50);

-- The newest events, for followers in any process, and the position of the last one. Whoever adds events locks that row,
-- so positions grow in the order of commits: a follower misses none.
CREATE TABLE holdfast.events (
    position bigint PRIMARY KEY,
    at       double precision NOT NULL,
    name     text NOT NULL,
    body     text NOT NULL                               -- JSON
);
CREATE TABLE holdfast.event_position (single boolean PRIMARY KEY DEFAULT true CHECK (single), last bigint NOT NULL)
    WITH (fillfactor = 50);

-- The number of each worker's last recording, so that a repeated one adds nothing.
CREATE TABLE holdfast.recordings (
    worker text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    at     double precision NOT NULL
);
