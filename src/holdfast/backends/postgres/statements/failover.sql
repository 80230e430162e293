-- failover: how a store detects that it may have lost writes, and for how long it then hands out no jobs.
-- Concurrency: one row; of two callers that find a new timeline, one writes it.

-- :: function_timeline
CREATE OR REPLACE FUNCTION holdfast.timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN  -- the WAL timeline, which changes when a server is promoted or restored to a point in time
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN OTHERS THEN RETURN 0;  -- a hosted service that hides it
END $$

-- :: function_quiet_seconds
-- After a failover to an asynchronous replica, the latest claims and renewals may be missing here while their handlers
-- run. For the longest lease duration, no job is claimed and no worker is declared dead: by then every worker has
-- renewed and learned which of its leases are lost, or has stopped its handlers because it could not renew.
CREATE OR REPLACE FUNCTION holdfast.quiet_seconds(at double precision) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    last holdfast.incarnation;
    line bigint := holdfast.timeline();
BEGIN
    SELECT * INTO last FROM holdfast.incarnation;
    IF NOT FOUND THEN  -- somebody deleted the row: assume the worst
        INSERT INTO holdfast.incarnation (timeline, lease_max)
        SELECT line - 1, greatest(30, max(w.lease_seconds)) FROM holdfast.workers w RETURNING * INTO last;
    END IF;
    IF last.timeline = line THEN RETURN greatest(0, last.quiet_until - at); END IF;
    UPDATE holdfast.incarnation SET timeline = line, quiet_until = at + lease_max WHERE timeline <> line;
    RETURN last.lease_max;
END $$
