-- Version 3: a job whose process died is a suspect; stalls suffered among others are counted apart.
-- A worker says whether it runs suspects alone.

ALTER TABLE holdfast_jobs ADD COLUMN shared_stalls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_jobs ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_workers ADD COLUMN isolates INTEGER NOT NULL DEFAULT 0;
