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
