-- edit: an operator changes one unstarted job, or deletes one that is not running.

-- == edit: change an unstarted job: arguments, queue, group, priority, order, due time. With `revive`, a dead one is revived first.
-- Takes the changes as JSON; what is absent stays. Returns the job.
-- Concurrency: the keys of the old and the new queue, then both groups, then the job are locked before its state is
-- checked, so a claim came first (it is running: refused), or finds the job changed.

-- :: call
SELECT holdfast.edit(%(id)s, %(changes)s::jsonb, %(args)s, %(text)s, %(by)s, %(now)s)::text

-- :: function_job_to_edit
-- Like job_to_change, and locks also the key and the group that the job is to have.
CREATE OR REPLACE FUNCTION holdfast.job_to_edit(named text, changes jsonb) RETURNS holdfast.jobs LANGUAGE plpgsql AS $$
DECLARE
    seen holdfast.jobs;
    j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    SELECT * INTO seen FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named);
    IF NOT FOUND THEN PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'job')); END IF;
    j := holdfast.edited(seen, changes);
    IF j.key IS NOT NULL THEN PERFORM holdfast.lock_keys(holdfast.key_names(seen) || holdfast.key_names(j)); END IF;
    PERFORM holdfast.lock_groups(array_agg(p)) FROM (
        VALUES (ROW(seen.queue, seen.grp)::holdfast.place), (ROW(j.queue, j.grp)::holdfast.place)) v(p)
    WHERE (p).grp IS NOT NULL HAVING count(*) > 0;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    IF NOT FOUND OR j.grp IS DISTINCT FROM seen.grp OR j.queue <> seen.queue THEN  -- changed meanwhile: the client retries
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN j;
END $$

-- :: function_edited
-- The job with its new queue, group, priority and order.
CREATE OR REPLACE FUNCTION holdfast.edited(j holdfast.jobs, changes jsonb) RETURNS holdfast.jobs LANGUAGE plpgsql AS $$
BEGIN
    IF changes ? 'group' THEN j.grp := changes ->> 'group'; END IF;
    IF changes ? 'order' THEN j.ordinal := (changes ->> 'order')::bigint; END IF;
    j.queue := coalesce(changes ->> 'queue', j.queue);
    j.priority := coalesce((changes ->> 'priority')::integer, j.priority);
    RETURN j;
END $$

-- :: function_edit
CREATE OR REPLACE FUNCTION holdfast.edit(named text, changes jsonb, arguments bytea, what text, who text,
                                         given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_edit(named, changes);
    new holdfast.jobs;
BEGIN
    IF (changes -> 'revive')::boolean AND j.state = 'dead' THEN
        PERFORM holdfast.revive(named, who, at);
        SELECT * INTO j FROM holdfast.jobs WHERE seq = j.seq;
    END IF;
    IF j.state NOT IN ('scheduled', 'waiting', 'ready') THEN PERFORM holdfast.refuse_state(j, 'edit'); END IF;
    new := holdfast.edited(j, changes);
    IF new.queue <> j.queue THEN PERFORM holdfast.change_queue(j, new, at); END IF;
    PERFORM holdfast.keep_up(at);
    IF arguments IS NOT NULL THEN UPDATE holdfast.jobs SET args = arguments WHERE seq = j.seq; END IF;
    PERFORM holdfast.place_edited(j, new, coalesce((changes ->> 'due_at')::double precision,
                                                   at + (changes ->> 'delay')::double precision), at);
    IF what <> '' THEN
        UPDATE holdfast.jobs SET marks = holdfast.with_mark(marks, 'edit', jsonb_build_object('by', who, 'text', what), at)
        WHERE seq = j.seq;
    END IF;
    IF j.grp IS NOT NULL AND (new.queue, new.grp) IS DISTINCT FROM (j.queue, j.grp) THEN
        PERFORM holdfast.refill_groups(ARRAY[ROW(j.queue, j.grp)::holdfast.place], at);
    END IF;
    RETURN holdfast.job_changed(new, at);
EXCEPTION WHEN unique_violation THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
END $$

-- :: function_change_queue
-- Take the key and the dead letter along, or refuse if another job has them there. Like start_afresh, it does not wait
-- long for a caller's open transaction that enqueues the same key.
CREATE OR REPLACE FUNCTION holdfast.change_queue(j holdfast.jobs, new holdfast.jobs, at double precision)
RETURNS void LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE other text;
BEGIN
    IF j.holds_key AND NOT j.key_global THEN
        other := holdfast.twin(new, at);
        IF other IS NOT NULL THEN
            PERFORM holdfast.refuse_state(j, 'edit', jsonb_build_object('live_id', other));
        END IF;
        PERFORM holdfast.take_key(new, at);
    END IF;
    UPDATE holdfast.jobs SET queue = new.queue WHERE seq = j.seq;
    PERFORM 1 FROM holdfast.letters WHERE job_id = j.id FOR UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT job_id INTO other FROM holdfast.letters WHERE logical = holdfast.logical_name(new) AND job_id <> j.id;
    IF FOUND THEN PERFORM holdfast.refuse_state(j, 'edit', jsonb_build_object('letter_id', other)); END IF;
    UPDATE holdfast.letters SET logical = holdfast.logical_name(new), queue = new.queue, grp = new.grp
    WHERE job_id = j.id;
END $$

-- :: function_place_edited
-- Bring the job to where its new values belong; one that need not move keeps its place and turn. `due`: its new due time.
CREATE OR REPLACE FUNCTION holdfast.place_edited(j holdfast.jobs, new holdfast.jobs, due double precision,
                                                 at double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    plays boolean := coalesce(due <= at, j.state <> 'scheduled');
    same boolean := (new.queue, new.grp, new.priority, new.ordinal)
        IS NOT DISTINCT FROM (j.queue, j.grp, j.priority, j.ordinal);
BEGIN
    IF due IS NOT NULL THEN
        UPDATE holdfast.jobs SET due_at = due, expires_at = expires_at - due_at + due WHERE seq = j.seq;
    END IF;
    IF same AND plays = (j.state <> 'scheduled') THEN RETURN; END IF;
    UPDATE holdfast.jobs
    SET state = CASE WHEN NOT plays THEN 'scheduled' WHEN new.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        grp = new.grp, priority = new.priority, ordinal = new.ordinal, lane = holdfast.lane_of(task, new.grp),
        rank = holdfast.rank_of(new.queue, new.priority),
        held = held AND (new.queue, new.grp) IS NOT DISTINCT FROM (j.queue, j.grp),
        turn = CASE WHEN plays AND same AND turn IS NOT NULL THEN turn
                    WHEN plays AND new.grp IS NULL
                    THEN holdfast.turn_of(nextval('holdfast.ticks'), new.queue, new.priority) END
    WHERE seq = j.seq;
END $$

-- == delete: remove a job that is not running, with its logs and the dead letter it holds. Its id stays in `ids`, without
-- a job, for as long as that of a finished job; `remembered` names it. Returns the job as it was.
-- Concurrency: key, group and job are locked before its state is checked; then the dead letter.

-- :: call
SELECT holdfast.delete(%(id)s, %(now)s)::text

-- :: function_delete
CREATE OR REPLACE FUNCTION holdfast.delete(named text, given double precision) RETURNS json LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
    record json := holdfast.job_record(j);
    forget_at double precision := coalesce(j.finished_at, at) + @REMEMBER_SECONDS_MIN;
BEGIN
    PERFORM holdfast.refuse_sealed();
    IF j.state = 'running' THEN PERFORM holdfast.refuse_state(j, 'delete'); END IF;
    IF holdfast.awaited_by(named) IS NOT NULL THEN
        PERFORM holdfast.refuse_state(j, 'delete', jsonb_build_object('child_id', holdfast.awaited_by(named)));
    END IF;
    DELETE FROM holdfast.letters WHERE job_id = named;
    PERFORM holdfast.remove(ARRAY[j.seq]);
    IF forget_at > at THEN
        INSERT INTO holdfast.ids (id, seq) VALUES (named, j.seq);
        INSERT INTO holdfast.remembered (id, until) VALUES (named, forget_at);
    END IF;
    IF j.grp IS NOT NULL AND (j.finished_at IS NULL OR j.held) THEN
        PERFORM holdfast.keep_up(at), holdfast.refill_groups(ARRAY[ROW(j.queue, j.grp)::holdfast.place], at);
    END IF;
    RETURN record;
END $$

-- :: function_forget_ids
-- A bounded part of the ids that need not be known any more.
CREATE OR REPLACE FUNCTION holdfast.forget_ids(at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH past AS (
        DELETE FROM holdfast.remembered WHERE id = ANY (ARRAY(
            SELECT r.id FROM holdfast.remembered r WHERE r.until <= at ORDER BY r.until LIMIT 10000
            FOR UPDATE SKIP LOCKED)) RETURNING id)
    DELETE FROM holdfast.ids i USING past p WHERE i.id = p.id;
END $$
