-- Version 13: arguments of more than 2,048 bytes lie in a table of their own. Leases and outcomes change the job's row,
-- and SQLite writes a changed row whole, whatever its size. Jobs of earlier versions keep theirs where they are.

CREATE TABLE holdfast_bodies (
    seq  INTEGER PRIMARY KEY,                            -- of the job
    args BLOB NOT NULL
) STRICT;
ALTER TABLE holdfast_jobs ADD COLUMN body INTEGER;       -- bytes of its arguments if they are there; its own are empty

-- Whichever statement deletes the job.
CREATE TRIGGER holdfast_jobs_deleted AFTER DELETE ON holdfast_jobs WHEN OLD.body IS NOT NULL
BEGIN
    DELETE FROM holdfast_bodies WHERE seq = OLD.seq;
END;
