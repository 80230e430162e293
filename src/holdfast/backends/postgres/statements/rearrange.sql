-- rearrange: apply a changed rule to existing jobs. The rule is in force at once; the affected jobs follow piecewise:
-- the ready jobs of a task move to their new lane, the groups of a queue get as many ready jobs as the rule allows. The
-- table `rearranging` has a row per unfinished task or queue, with its progress. A store without such rows pays
-- nothing. Takes the bound of one pass (jobs moved plus groups fitted). Returns whether there is more to do; NULL if
-- there was nothing to do.
-- Concurrency: the rules lock is shared, so no rule changes meanwhile; one transaction at a time works on a row (SKIP
-- LOCKED); a group is fitted with its lock held. A job locked by another session is skipped and retried in another
-- round. Ready jobs keep their index position until they leave the index, so one full round visits all of them.

-- :: call
SELECT holdfast.rearrange(%(limit)s, %(now)s)

-- :: function_rearrange
CREATE OR REPLACE FUNCTION holdfast.rearrange(most integer, given double precision) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE at double precision := holdfast.store_now(given);
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    IF NOT EXISTS (SELECT FROM holdfast.rearranging) THEN RETURN NULL; END IF;
    RETURN holdfast.carry_on(most, at);
END $$

-- :: function_carry_on
CREATE OR REPLACE FUNCTION holdfast.carry_on(most integer, at double precision) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE r holdfast.rearranging;
BEGIN
    FOR r IN SELECT * FROM holdfast.rearranging ORDER BY kind, name LOOP
        EXIT WHEN most <= 0;
        most := most - CASE r.kind WHEN 'task' THEN holdfast.move_task(r.name, most)
                                   ELSE holdfast.fit_queue(r.name, most, at) END;
    END LOOP;
    RETURN EXISTS (SELECT FROM holdfast.rearranging);
END $$

-- :: function_lanes_changed
-- A pause, a limit or a rule of a task changed: move its ready jobs to their new lane; they keep their turns.
-- Takes the lanes they belonged to before. Includes what an earlier change left unfinished.
CREATE OR REPLACE FUNCTION holdfast.lanes_changed(named text, before smallint[], step integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE wrong smallint[];
BEGIN
    DELETE FROM holdfast.rearranging WHERE kind = 'task' AND name = named RETURNING lanes INTO wrong;
    wrong := ARRAY(SELECT DISTINCT l FROM unnest(wrong || before) l WHERE l <> ALL (holdfast.lanes_of(named)));
    IF wrong = '{}' THEN RETURN; END IF;
    INSERT INTO holdfast.rearranging (kind, name, lanes) VALUES ('task', named, wrong);
    PERFORM holdfast.move_task(named, step);
END $$

-- :: function_lanes_of
CREATE OR REPLACE FUNCTION holdfast.lanes_of(named text) RETURNS smallint[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY[holdfast.lane_of(named, NULL), holdfast.lane_of(named, 'g')]  -- without and with a group
$$

-- :: function_move_task
-- Examines about four times as many ready jobs as it may move, at most, from where the last pass stopped: lane by lane,
-- in index order. Returns the cost: the jobs moved, or a quarter of those examined if that is more.
CREATE OR REPLACE FUNCTION holdfast.move_task(named text, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    r holdfast.rearranging;
    belongs smallint[] := holdfast.lanes_of(named);
    looks integer := 4 * most + 4;
    left_to_move integer := most;
    ours bigint[];
    moved bigint[];
    looked integer;
BEGIN
    SELECT * INTO r FROM holdfast.rearranging WHERE kind = 'task' AND name = named FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 0; END IF;
    WHILE looks > 0 AND left_to_move > 0 LOOP
        looked := 0;
        IF r.lane = ANY (r.lanes) THEN
            SELECT p.ours, p.looked, p.rank, p.turn, p.seq INTO ours, looked, r.rank, r.turn, r.seq
            FROM holdfast.next_ready(r, looks, left_to_move) p;
            moved := holdfast.move_jobs(ours, r.lane, belongs);
            left_to_move := left_to_move - cardinality(moved);
            r.missed := r.missed OR holdfast.are_left(ours, moved, r.lane);
            looks := looks - looked;
        END IF;
        CONTINUE WHEN looked > 0;
        looks := looks - 1;
        SELECT j.queue, j.lane, 2147483647, -9223372036854775808, 0 INTO r.queue, r.lane, r.rank, r.turn, r.seq
        FROM holdfast.jobs j WHERE j.state = 'ready' AND (j.queue, j.lane) > (r.queue, r.lane)
        ORDER BY j.queue, j.lane LIMIT 1;
        IF r.queue IS NULL THEN  -- the round is complete
            IF NOT r.missed THEN
                DELETE FROM holdfast.rearranging WHERE kind = 'task' AND name = named;
                RETURN most - left_to_move;
            END IF;
            r := ROW('task', named, r.lanes, '', -1, 0, 0, 0, '', false)::holdfast.rearranging;
            EXIT;
        END IF;
    END LOOP;
    UPDATE holdfast.rearranging w SET queue = r.queue, lane = r.lane, rank = r.rank, turn = r.turn, seq = r.seq,
                                      missed = r.missed WHERE w.kind = 'task' AND w.name = named;
    RETURN greatest(most - left_to_move, (4 * most + 4 - looks) / 4);
END $$

-- :: function_next_ready
-- The next jobs of the current lane after the pass's position: those of the task, how many were examined, and the
-- position of the last one.
CREATE OR REPLACE FUNCTION holdfast.next_ready(r holdfast.rearranging, looks integer, most integer,
    OUT ours bigint[], OUT looked integer, OUT rank integer, OUT turn bigint, OUT seq bigint) LANGUAGE sql AS $$
    WITH same_rank AS MATERIALIZED (
        SELECT j.task, j.rank, j.turn, j.seq FROM holdfast.jobs j
        WHERE j.state = 'ready' AND j.queue = r.queue AND j.lane = r.lane AND j.rank = r.rank
          AND (j.turn, j.seq) > (r.turn, r.seq) ORDER BY j.turn, j.seq LIMIT looks
    ), lower AS MATERIALIZED (
        SELECT j.task, j.rank, j.turn, j.seq FROM holdfast.jobs j
        WHERE j.state = 'ready' AND j.queue = r.queue AND j.lane = r.lane AND j.rank < r.rank
        ORDER BY j.rank DESC, j.turn, j.seq LIMIT looks - (SELECT count(*) FROM same_rank)
    ), counted AS (
        SELECT b.*, count(*) FILTER (WHERE b.task = r.name) OVER w AS nth, row_number() OVER w AS n
        FROM (TABLE same_rank UNION ALL TABLE lower) b WINDOW w AS (ROWS UNBOUNDED PRECEDING)
    ), within AS MATERIALIZED (SELECT * FROM counted WHERE nth <= most)
    SELECT ARRAY(SELECT w.seq FROM within w WHERE w.task = r.name ORDER BY w.n), (SELECT count(*)::integer FROM within),
           coalesce(e.rank, r.rank), coalesce(e.turn, r.turn), coalesce(e.seq, r.seq)
    FROM (SELECT 1) one LEFT JOIN (SELECT * FROM within ORDER BY n DESC LIMIT 1) e ON true
$$

-- :: function_move_jobs
CREATE OR REPLACE FUNCTION holdfast.move_jobs(seqs bigint[], wrong smallint, belongs smallint[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE locked bigint[] := ARRAY(
    SELECT j.seq FROM unnest(seqs) s(seq) JOIN holdfast.jobs j ON j.seq = s.seq
    WHERE CASE j.state WHEN 'ready' THEN j.lane = wrong END ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED);
BEGIN
    UPDATE holdfast.jobs SET lane = CASE WHEN grp IS NULL THEN belongs[1] ELSE belongs[2] END WHERE seq = ANY (locked);
    RETURN locked;
END $$

-- :: function_are_left
CREATE OR REPLACE FUNCTION holdfast.are_left(seqs bigint[], moved bigint[], wrong smallint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- whether any of these jobs is still in the wrong lane
    RETURN cardinality(seqs) > cardinality(moved) AND EXISTS (
        SELECT FROM unnest(seqs) s(seq) JOIN holdfast.jobs j ON j.seq = s.seq
        WHERE CASE j.state WHEN 'ready' THEN j.lane = wrong END);
END $$

-- :: function_groups_changed
CREATE OR REPLACE FUNCTION holdfast.groups_changed(named text, step integer, at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- the limit, order or rate of a queue's groups changed
    DELETE FROM holdfast.rearranging WHERE kind = 'queue' AND name = named;
    INSERT INTO holdfast.rearranging (kind, name) VALUES ('queue', named);
    PERFORM holdfast.fit_queue(named, step, at);
END $$

-- :: function_fit_queue
-- Fit the next groups of a queue, by name, up to the first whose lock is not free. Returns how many.
CREATE OR REPLACE FUNCTION holdfast.fit_queue(named text, most integer, at double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    r holdfast.rearranging;
    names text[];
    locked integer := 0;
BEGIN
    SELECT * INTO r FROM holdfast.rearranging WHERE kind = 'queue' AND name = named FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 0; END IF;
    names := holdfast.groups_after(named, r.grp, most);
    WHILE locked < cardinality(names) AND holdfast.try_group(named, names[locked + 1]) LOOP
        locked := locked + 1;
    END LOOP;
    PERFORM holdfast.fit(ARRAY(SELECT ROW(named, g)::holdfast.place FROM unnest(names[:locked]) g), at);
    IF locked = cardinality(names) AND locked < most THEN
        DELETE FROM holdfast.rearranging WHERE kind = 'queue' AND name = named;
    ELSIF locked > 0 THEN
        UPDATE holdfast.rearranging SET grp = names[locked] WHERE kind = 'queue' AND name = named;
    END IF;
    RETURN locked;
END $$

-- :: function_groups_after
-- The next groups of a queue by name, after the given one, that have jobs waiting, ready, running or backing off at the
-- head; skips through the indexes.
CREATE OR REPLACE FUNCTION holdfast.groups_after(named text, last text, most integer) RETURNS text[]
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE g(name, n) AS (
        SELECT last, 0
        UNION ALL
        SELECT least((SELECT j.grp FROM holdfast.jobs j WHERE j.state = 'waiting' AND j.queue = named AND j.grp > g.name
                      ORDER BY j.grp LIMIT 1),
                     (SELECT j.grp FROM holdfast.jobs j WHERE j.queue = named AND j.grp > g.name AND @in_play(j)
                      ORDER BY j.grp LIMIT 1)), g.n + 1
        FROM g WHERE g.name IS NOT NULL AND g.n < most)
    SELECT ARRAY(SELECT g.name FROM g WHERE g.n > 0 AND g.name IS NOT NULL ORDER BY g.n)
$$

-- :: function_sound_heads
-- The first jobs of a lane that may be leased while a changed rule is still being applied. Of the jobs examined, those
-- in the wrong lane are moved, and groups not yet known to fit are fitted if their lock is free; the rest are skipped.
CREATE OR REPLACE FUNCTION holdfast.sound_heads(named text, number smallint, most integer, sweep integer,
    guarded boolean, low integer, high integer, at double precision) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    fits_to text := (SELECT r.grp FROM holdfast.rearranging r WHERE r.kind = 'queue' AND r.name = named);
    moving text[] := '{}';  -- tasks whose jobs do not belong in this lane
    looked bigint[];
    moved text;
    places holdfast.place[];
BEGIN
    looked := ARRAY(SELECT seq FROM holdfast.jobs
        WHERE state = 'ready' AND queue = named AND lane = number AND (expires_at IS NULL OR expires_at > at)
          AND rank >= coalesce(low, -2147483648) AND rank <= coalesce(high, 2147483647)
        ORDER BY rank DESC, turn, seq LIMIT most + sweep);
    IF number < 2 THEN
        moving := ARRAY(SELECT r.name FROM holdfast.rearranging r
                        WHERE r.kind = 'task' AND number <> ALL (holdfast.lanes_of(r.name)));
    END IF;
    FOREACH moved IN ARRAY moving LOOP
        PERFORM holdfast.move_jobs(ARRAY(
            SELECT j.seq FROM unnest(looked) l(seq) JOIN holdfast.jobs j ON j.seq = l.seq WHERE j.task = moved
            LIMIT sweep), number, holdfast.lanes_of(moved));
    END LOOP;
    IF fits_to IS NOT NULL THEN
        places := ARRAY(SELECT ROW(named, g.grp)::holdfast.place FROM (
            SELECT DISTINCT j.grp FROM unnest(looked) l(seq) JOIN holdfast.jobs j ON j.seq = l.seq
            WHERE CASE j.state WHEN 'ready' THEN j.grp > fits_to END AND j.task <> ALL (moving) LIMIT sweep) g
            WHERE holdfast.try_group(named, g.grp));
        PERFORM holdfast.fit(places, at);
    END IF;
    RETURN ARRAY(SELECT j.seq FROM unnest(looked) l(seq) JOIN holdfast.jobs j ON j.seq = l.seq
        WHERE CASE j.state WHEN 'ready' THEN j.lane = number END AND j.task <> ALL (moving)
          AND (j.grp IS NULL OR fits_to IS NULL OR j.grp <= fits_to OR ROW(named, j.grp)::holdfast.place = ANY (places))
          AND CASE WHEN guarded AND j.grp IS NOT NULL THEN holdfast.try_group(named, j.grp) ELSE true END
        ORDER BY j.rank DESC, j.turn, j.seq LIMIT most FOR UPDATE OF j SKIP LOCKED);
END $$
