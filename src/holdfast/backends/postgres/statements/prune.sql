-- prune: delete finished jobs past their retention, then those beyond their task's retention rule, and idle rate state.
-- A dead job with a dead letter has no prune_at: only a task's rule allows deleting it. Deletes at most N jobs, the
-- oldest first; with `older_than`, those whose retention ends first. Concurrency: rows locked by another sweep or by a
-- revival are skipped.

-- :: call
SELECT holdfast.prune(%(limit)s, %(older_than)s::float8, %(now)s)

-- :: function_prune
CREATE OR REPLACE FUNCTION holdfast.prune(most integer, older_than double precision, given double precision)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    past bigint[];
    rule holdfast.tasks;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    IF older_than IS NULL THEN
        past := ARRAY(SELECT seq FROM holdfast.jobs WHERE prune_at IS NOT NULL AND prune_at <= at
                      ORDER BY prune_at LIMIT most FOR UPDATE SKIP LOCKED);
    ELSE
        past := ARRAY(SELECT seq FROM holdfast.jobs j
                      WHERE prune_at IS NOT NULL
                        AND holdfast.may_go(j, at - greatest(older_than, @REMEMBER_SECONDS_MIN), at)
                      ORDER BY prune_at LIMIT most FOR UPDATE SKIP LOCKED);
    END IF;
    past := holdfast.without_needed(past, at);
    PERFORM holdfast.remove(past);
    FOR rule IN SELECT * FROM holdfast.tasks ORDER BY name LOOP
        past := past || holdfast.prune_finished(rule, most - cardinality(past), at);
        past := past || holdfast.prune_letters(rule, most - cardinality(past), at);
    END LOOP;
    PERFORM holdfast.prune_flows(at), holdfast.forget_ids(at);
    RETURN cardinality(past);
END $$

-- :: function_prune_flows
-- Delete idle rate state from one random stretch of 500 pages, each as likely as any other. An index on the time would make
-- every update of such a row write it, and a position to continue from would be one more thing to store.
CREATE OR REPLACE FUNCTION holdfast.prune_flows(at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    pages bigint := pg_relation_size('holdfast.flows') / current_setting('block_size')::bigint;
    first bigint := 500 * floor(random() * ceil(pages / 500.0));
BEGIN
    DELETE FROM holdfast.flows WHERE ctid = ANY (ARRAY(
        SELECT f.ctid FROM holdfast.flows f
        WHERE f.ctid >= format('(%s,0)', first)::tid AND f.ctid < format('(%s,0)', first + 500)::tid
          AND f.wakes_at IS NULL AND greatest(f.spent_until, f.shut_until) <= at
        LIMIT 10000 FOR UPDATE SKIP LOCKED));
END $$

-- :: function_may_go
CREATE OR REPLACE FUNCTION holdfast.may_go(j holdfast.jobs, before double precision, at double precision)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT j.finished_at <= before AND coalesce(@window_end(j) <= at, true)
$$

-- :: function_remove
CREATE OR REPLACE FUNCTION holdfast.remove(past bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.forget_edges(past), holdfast.forget_steps(past);
    DELETE FROM holdfast.logs WHERE job_seq = ANY (past);
    DELETE FROM holdfast.retained WHERE seq = ANY (past);
    WITH gone AS (DELETE FROM holdfast.jobs WHERE seq = ANY (past) RETURNING id)
    DELETE FROM holdfast.ids i USING gone WHERE i.id = gone.id;
END $$

-- :: function_retain
-- Record jobs that succeeded or were cancelled, if their task keeps only its newest N.
CREATE OR REPLACE FUNCTION holdfast.retain(seqs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.retained (seq, task, finished_at)
    SELECT j.seq, j.task, j.finished_at FROM unnest(seqs) s(seq) JOIN holdfast.jobs j ON j.seq = s.seq
    JOIN holdfast.tasks t ON t.name = j.task AND t.retain_count IS NOT NULL
    WHERE j.state IN ('succeeded', 'cancelled') ON CONFLICT (seq) DO NOTHING;
END $$

-- :: function_prune_finished
-- Delete succeeded and cancelled jobs beyond the newest N of a task. They are recorded as they finish; those that had
-- finished before the rule existed are recorded here, piecewise. That is safe meanwhile: a job with N newer ones among
-- those recorded has N newer ones among all.
CREATE OR REPLACE FUNCTION holdfast.prune_finished(rule holdfast.tasks, most integer, at double precision)
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    newest holdfast.retained;
    upto bigint;
    past bigint[];
BEGIN
    IF rule.retain_count IS NULL OR most <= 0 THEN RETURN '{}'; END IF;
    IF rule.count_after < rule.count_until THEN
        upto := least(rule.count_until, (SELECT max(p.seq) FROM (
            SELECT seq FROM holdfast.jobs WHERE seq > rule.count_after ORDER BY seq LIMIT 10000) p));
        PERFORM holdfast.retain(ARRAY(SELECT seq FROM holdfast.jobs WHERE seq > rule.count_after AND seq <= upto
                                      AND task = rule.name AND state IN ('succeeded', 'cancelled')));
        UPDATE holdfast.tasks SET count_after = coalesce(upto, count_until) WHERE name = rule.name;
    END IF;
    SELECT * INTO newest FROM holdfast.retained WHERE task = rule.name
    ORDER BY finished_at DESC, seq DESC OFFSET rule.retain_count LIMIT 1;
    past := ARRAY(SELECT j.seq FROM holdfast.retained r JOIN holdfast.jobs j ON j.seq = r.seq
                  WHERE r.task = rule.name AND (r.finished_at, r.seq) <= (newest.finished_at, newest.seq)
                    AND holdfast.may_go(j, at - @REMEMBER_SECONDS_MIN, at)
                  ORDER BY r.finished_at, r.seq LIMIT most FOR UPDATE OF j SKIP LOCKED);
    past := holdfast.without_needed(past, at);
    PERFORM holdfast.remove(past);
    RETURN past;
END $$

-- :: function_prune_letters
CREATE OR REPLACE FUNCTION holdfast.prune_letters(rule holdfast.tasks, most integer, at double precision)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    past bigint[] := '{}';
    ids text[] := '{}';
    stopped holdfast.place[];
    one record;
BEGIN  -- first those that are too old, then those beyond the count
    FOR one IN
        SELECT o.seq, o.id FROM (
            SELECT j.seq, j.id, l.failed_at, holdfast.may_go(j, at - @REMEMBER_SECONDS_MIN, at) AND j.state = 'dead' AS may_go,
                   l.failed_at <= at - rule.retain_dead AS old,
                   row_number() OVER (ORDER BY l.failed_at DESC, j.seq DESC) > rule.retain_dead_count AS beyond
            FROM holdfast.letters l JOIN holdfast.ids i ON i.id = l.job_id JOIN holdfast.jobs j ON j.seq = i.seq
            WHERE l.task = rule.name AND (rule.retain_dead IS NOT NULL OR rule.retain_dead_count IS NOT NULL)) o
        WHERE o.may_go AND (o.old OR o.beyond)
        ORDER BY o.old IS NOT TRUE, o.failed_at, o.seq LIMIT greatest(0, most)
    LOOP
        PERFORM 1 FROM holdfast.letters l JOIN holdfast.jobs j ON j.id = l.job_id
        WHERE l.job_id = one.id AND j.seq = one.seq AND j.state = 'dead' FOR UPDATE OF l, j SKIP LOCKED;
        CONTINUE WHEN NOT FOUND OR cardinality(holdfast.without_needed(ARRAY[one.seq], at)) = 0;
        past := past || one.seq;
        ids := ids || one.id;
    END LOOP;
    DELETE FROM holdfast.letters WHERE job_id = ANY (ids);
    stopped := ARRAY(SELECT DISTINCT ROW(j.queue, j.grp)::holdfast.place FROM holdfast.jobs j
                     WHERE j.seq = ANY (past) AND j.held);
    PERFORM holdfast.remove(past);
    PERFORM holdfast.go_on(s.queue, s.grp, at) FROM unnest(stopped) s;
    RETURN past;
END $$
