-- wake: groups that have a rate. They have no more ready jobs than their bucket allows; claim charges it, and where it
-- keeps jobs waiting it says when refill is to look again.
-- Safe against a rival: whoever writes a group's bucket holds the group's lock (refill.sql).

-- :: function_set_groups_back
CREATE OR REPLACE FUNCTION holdfast.set_groups_back(places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- of groups that have jobs waiting or ready
    UPDATE holdfast.flows f SET spent_until = holdfast.bounded(g.rate, f.spent_until, at)
    FROM holdfast.limits(places) g
    WHERE f.kind = 'group' AND f.queue = g.queue AND f.name = g.grp AND (g.rate).count IS NOT NULL
      AND holdfast.bounded(g.rate, f.spent_until, at) <> f.spent_until
      AND (EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'waiting' AND j.queue = g.queue AND j.grp = g.grp)
           OR EXISTS (SELECT 1 FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = g.queue AND j.grp = g.grp));
END $$

-- :: function_wake
CREATE OR REPLACE FUNCTION holdfast.wake(places holdfast.place[], at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- also: that nothing waits for the bucket any more
    UPDATE holdfast.flows f SET wakes_at = w.wakes_at FROM (
        SELECT l.queue, l.grp, CASE WHEN b.spent_until > at AND r.ready < 256 AND l.most > r.in_play
                   AND holdfast.allowed(l.rate, b.spent_until, at) <= r.ready
                   AND EXISTS (SELECT 1 FROM holdfast.jobs j
                               WHERE j.state = 'waiting' AND j.queue = l.queue AND j.grp = l.grp)
               THEN holdfast.opens_at(l.rate, b.spent_until) + r.ready * holdfast.every(l.rate) END AS wakes_at
        FROM holdfast.limits(places) l
        JOIN holdfast.flows b ON b.kind = 'group' AND b.queue = l.queue AND b.name = l.grp
        CROSS JOIN LATERAL (
            SELECT count(*) AS in_play, count(*) FILTER (WHERE p.state = 'ready') AS ready FROM holdfast.jobs p
            WHERE p.queue = l.queue AND p.grp = l.grp AND p.grp IS NOT NULL
            AND (p.state IN ('ready', 'running') OR (p.state = 'scheduled' AND p.held))) r) w
    WHERE f.kind = 'group' AND f.queue = w.queue AND f.name = w.grp AND f.wakes_at IS DISTINCT FROM w.wakes_at;
END $$

-- :: function_charge_groups
-- After a claim: what it leased is charged to the groups' buckets, and where a group may now have more ready it gets
-- them. A group without a rate whose lock is not free is left to whoever holds it, or to the end of these leases.
CREATE OR REPLACE FUNCTION holdfast.charge_groups(claimer text, number bigint, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE places holdfast.place[];
BEGIN
    SELECT array_agg(DISTINCT ROW(j.queue, j.grp)::holdfast.place) INTO places
    FROM holdfast.bounds b JOIN holdfast.jobs j ON j.queue = b.name
    WHERE b.kind = 'queue' AND (b.rated OR b.wide)
      AND j.state = 'running' AND j.worker = claimer AND j.claim_call = number AND j.grp IS NOT NULL;
    IF places IS NULL THEN RETURN; END IF;
    INSERT INTO holdfast.flows AS f (kind, queue, name, spent_until)
    SELECT 'group', g.queue, g.grp, holdfast.charged(g.rate, coalesce(b.spent_until, 0), at, s.starts)
    FROM holdfast.limits(places) g
    CROSS JOIN LATERAL (
        SELECT count(*)::integer AS starts FROM holdfast.jobs j WHERE j.state = 'running' AND j.worker = claimer
        AND j.claim_call = number AND j.queue = g.queue AND j.grp = g.grp) s
    LEFT JOIN holdfast.flows b ON b.kind = 'group' AND b.queue = g.queue AND b.name = g.grp
    WHERE (g.rate).count IS NOT NULL
    ON CONFLICT (kind, queue, name) DO UPDATE SET spent_until = excluded.spent_until;
    PERFORM holdfast.refill_groups(ARRAY(SELECT p FROM unnest(places) p WHERE holdfast.try_group(p.queue, p.grp)), at);
END $$
