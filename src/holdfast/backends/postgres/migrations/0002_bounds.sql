-- Version 2. Functions are made anew from the statement files; those of version 1 go, so that none is left whose
-- signature has changed.

DO $$
DECLARE one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_proc p JOIN pg_class c ON c.oid = 'holdfast.jobs'::regclass
               WHERE p.pronamespace = c.relnamespace AND p.proname <> 'is_sound' LOOP
        EXECUTE format('DROP FUNCTION %s', one);
    END LOOP;
END $$;

-- What a claim took: the leases as text, the arguments of all as they are, one behind the other, and whether the claim
-- is at its end because more would not have fitted.
CREATE TYPE holdfast.taken AS (leases text[], bodies bytea, is_full boolean);

-- An operator's word that a task's ready jobs have a lane of their own.
ALTER TABLE holdfast.overrides ADD COLUMN apart boolean;

-- What changed rules left to do: see statements/rearrange.sql. Mostly empty.
CREATE TABLE holdfast.rearranging (
    kind   text COLLATE "C" NOT NULL CHECK (kind IN ('queue', 'task')),
    name   text COLLATE "C" NOT NULL,
    lanes  smallint[] NOT NULL DEFAULT '{}',             -- of a task: where ready jobs of it may be that belong elsewhere
    queue  text COLLATE "C" NOT NULL DEFAULT '',         -- of a task: the place of the job looked at last
    lane   smallint NOT NULL DEFAULT -1,
    rank   integer NOT NULL DEFAULT 0,
    turn   bigint NOT NULL DEFAULT 0,
    seq    bigint NOT NULL DEFAULT 0,
    grp    text COLLATE "C" NOT NULL DEFAULT '',         -- of a queue: its groups up to this one fit
    missed boolean NOT NULL DEFAULT false,               -- jobs were passed over: go through them once more
    PRIMARY KEY (kind, name)
);
