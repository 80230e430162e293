-- room: what a group may have in play and ready by its limit and its bucket, what it has, and how what is too much waits
-- again. What is in play is read off the jobs' own states: no counter exists that could drift.
-- Safe against a rival: the caller holds the group's lock (refill.sql), or the rules alone.

-- :: function_limits
CREATE OR REPLACE FUNCTION holdfast.limits(places holdfast.place[])
RETURNS TABLE (queue text, grp text, most integer, rate holdfast.rate, aging double precision) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (p.queue, p.grp) p.queue, p.grp,
           CASE WHEN z.kind IS NOT NULL THEN 0
                WHEN q.group_order = 'relaxed' AND NOT starts_with(p.grp, 'one-at-a-time:')  -- SERIAL_PREFIX
                THEN coalesce(o.job_limit, q.group_limit)
                ELSE 1 END,
           CASE WHEN (coalesce(o.rate, q.group_rate)).count < 1000000000 THEN coalesce(o.rate, q.group_rate) END,
           CASE WHEN abs(q.aging) < 1000000000 THEN q.aging END  -- NaN is above all numbers
    FROM unnest(places) p
    LEFT JOIN holdfast.queues q ON q.name = p.queue
    LEFT JOIN holdfast.overrides o ON o.kind = 'group' AND o.queue = p.queue AND o.name = p.grp
    LEFT JOIN holdfast.pauses z ON z.kind = 'group' AND z.queue = p.queue AND z.name = p.grp
$$

-- :: function_group_rooms
-- How many more of each group may become ready by its limit and its bucket (below 0: so many are too many), and what
-- stands ready: how many, and the last turn of them.
CREATE OR REPLACE FUNCTION holdfast.group_rooms(places holdfast.place[], at double precision)
RETURNS TABLE (queue text, grp text, room bigint, ready bigint, last bigint, aging double precision)
LANGUAGE sql STABLE AS $$
    SELECT g.queue, g.grp,
           least(g.most - p.in_play, CASE WHEN (g.rate).count IS NOT NULL THEN holdfast.allowed(g.rate, coalesce((
               SELECT f.spent_until FROM holdfast.flows f
               WHERE f.kind = 'group' AND f.queue = g.queue AND f.name = g.grp), 0), at) - p.ready END),
           p.ready, p.last, g.aging
    FROM holdfast.limits(places) g CROSS JOIN LATERAL (
        SELECT count(*) AS in_play, count(*) FILTER (WHERE j.state = 'ready') AS ready,
               max(j.turn) FILTER (WHERE j.state = 'ready') AS last
        FROM holdfast.jobs j WHERE j.queue = g.queue AND j.grp = g.grp AND j.grp IS NOT NULL
        AND (j.state IN ('ready', 'running') OR (j.state = 'scheduled' AND j.held))) p
$$

-- :: function_withdraw
CREATE OR REPLACE FUNCTION holdfast.withdraw(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- what a claim is taking at this moment is no longer ready when it lets go of the row
    WITH beyond AS MATERIALIZED (
        SELECT w.seq FROM holdfast.group_rooms(places, at) g CROSS JOIN LATERAL (
            SELECT r.seq FROM holdfast.jobs r
            WHERE r.queue = g.queue AND r.grp = g.grp AND r.state = 'ready'
            ORDER BY r.held, r.priority, r.seq DESC LIMIT greatest(0, -g.room)) w)
    UPDATE holdfast.jobs j SET state = 'waiting' FROM beyond WHERE j.seq = beyond.seq AND j.state = 'ready';
END $$
