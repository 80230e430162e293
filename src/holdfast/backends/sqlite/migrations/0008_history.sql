-- Version 8: what a job's row does not show of its timeline: releases, snoozes, operators' verbs. Only a job that had one
-- of these has a value; a job that succeeds at once costs nothing more.

ALTER TABLE holdfast_jobs ADD COLUMN marks TEXT;                              -- JSON of records.Mark, oldest first
