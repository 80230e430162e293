-- Version 4. No table changed. Functions are made anew from the statement files; those of version 3 go, so that none is
-- left whose signature has changed.

DO $$
DECLARE one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_proc p JOIN pg_class c ON c.oid = 'holdfast.jobs'::regclass
               WHERE p.pronamespace = c.relnamespace AND p.proname <> 'is_sound' LOOP
        EXECUTE format('DROP FUNCTION %s', one);
    END LOOP;
END $$;
