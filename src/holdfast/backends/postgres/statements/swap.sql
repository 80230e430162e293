-- swap: for each job of a group that just ended, one of the group's waiting jobs becomes ready. Done by exchanges instead
-- of a refill where groups may run several jobs at once, so that workers that share a busy group do not wait for each
-- other's commits.
-- Takes the successes of a call, their answers, and groups. Safe against a rival: the groups' locks are held shared, so
-- nobody who holds one alone (refill.sql) adds to a group meanwhile, and whoever shares it puts no more in play than it
-- took out, of room that it sees itself: together they never exceed a limit. Waiting rows are locked with SKIP LOCKED: a
-- rival that shares the group takes the next one, which no order forbids where several run at once.

-- :: function_may_swap
-- Whether all of these groups may have more than one job in play.
CREATE OR REPLACE FUNCTION holdfast.may_swap(places holdfast.place[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues WHERE group_order = 'relaxed') THEN RETURN false; END IF;
    RETURN NOT EXISTS (SELECT FROM holdfast.limits(places) g WHERE g.most < 2);
END $$

-- :: function_share_groups
-- Who shares a group asks for no lock of it alone in the same transaction: two of them would wait for each other.
CREATE OR REPLACE FUNCTION holdfast.share_groups(places holdfast.place[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('holdfast.groups'), s.stripe)
    FROM (SELECT DISTINCT hashtext(p.queue || '/' || p.grp) & 1023 AS stripe FROM unnest(places) p ORDER BY 1) s;
END $$

-- :: function_swap
-- What ended is counted by the answers: a settlement that came too late ended nothing.
CREATE OR REPLACE FUNCTION holdfast.swap(successes jsonb, answers text[], places holdfast.place[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended holdfast.place[] := ARRAY(
        SELECT ROW(j.queue, j.grp)::holdfast.place
        FROM jsonb_array_elements_text(successes -> 'token') WITH ORDINALITY t(token, n)
        JOIN holdfast.jobs j ON j.seq = split_part(t.token, '.', 1)::bigint
        WHERE answers[t.n] = 'ok' AND j.grp IS NOT NULL);
BEGIN
    PERFORM holdfast.join_due(places, at);
    PERFORM holdfast.make_ready(places, ended, at);
END $$
