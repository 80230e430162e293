-- unique_keys: which job holds a unique key, and what to do with a new job whose key is held.

-- == key: which job holds a key. At most one does. A job whose window has passed no longer holds it, though its flag
-- stays set until another job takes the key. A key is unique per queue and task, a global one per task; the two are
-- independent. Concurrency: the unique index decides; our own transactions lock a key's name before taking the key.

-- :: fragment holds_key_of(h, n)
-- Whether the job h holds the key of n.
@h.holds_key AND @h.task = @n.task AND @h.key = @n.key AND @h.key_global = @n.key_global
AND CASE WHEN @h.key_global THEN '' ELSE @h.queue END = CASE WHEN @n.key_global THEN '' ELSE @n.queue END

-- :: fragment window_end(j)
-- When the window of its key ends; NULL if it has none: formulas.window_end.
CASE WHEN @j.key IS NOT NULL THEN @j.created_at + @j.key_window END

-- :: function_key_name
CREATE OR REPLACE FUNCTION holdfast.key_name(queue text, task text, key text, is_global boolean)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN is_global THEN 'global:' || jsonb_build_array(task, key)::text
                ELSE 'key:' || jsonb_build_array(queue, task, key)::text END
$$

-- :: function_key_holder
CREATE OR REPLACE FUNCTION holdfast.key_holder(queued text, tasked text, keyed text, is_global boolean,
                                               at double precision) RETURNS holdfast.jobs LANGUAGE plpgsql AS $$
DECLARE holder holdfast.jobs;
BEGIN
    SELECT * INTO holder FROM holdfast.jobs h
    WHERE h.holds_key AND h.task = tasked AND h.key = keyed AND h.key_global = is_global
      AND CASE WHEN h.key_global THEN '' ELSE h.queue END = CASE WHEN is_global THEN '' ELSE queued END
      AND (h.key_window IS NULL OR @window_end(h) > at);
    RETURN holder;
END $$

-- :: function_free_keys
-- Before new jobs take their keys: clear the flags of holders whose windows have passed.
CREATE OR REPLACE FUNCTION holdfast.free_keys(news holdfast.new_job[], at double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.jobs h SET holds_key = false FROM unnest(news) n
    WHERE @holds_key_of(h, n) AND @window_end(h) <= at
      AND NOT EXISTS (SELECT 1 FROM holdfast.ids known WHERE known.id = n.id);
END $$

-- :: function_take_key
CREATE OR REPLACE FUNCTION holdfast.take_key(j holdfast.jobs, at double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- for a finished job that comes back; the caller has checked that nobody holds its key
    UPDATE holdfast.jobs h SET holds_key = false
    WHERE @holds_key_of(h, j) AND h.seq <> j.seq AND @window_end(h) <= at;
END $$

-- :: function_lock_keys
CREATE OR REPLACE FUNCTION holdfast.lock_keys(names text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('holdfast.keys'), s.stripe)
    FROM (SELECT DISTINCT hashtext(k) & 1023 AS stripe FROM unnest(names) k WHERE k IS NOT NULL ORDER BY 1) s;
END $$

-- :: function_key_names
-- The names to lock for a job with a key: its dead letter's name, and its key's name if that differs.
CREATE OR REPLACE FUNCTION holdfast.key_names(j holdfast.jobs) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN j.key IS NULL THEN '{}'::text[] WHEN j.key_global
                THEN ARRAY[holdfast.logical_name(j), holdfast.key_name(j.queue, j.task, j.key, true)]
                ELSE ARRAY[holdfast.logical_name(j)] END
$$

-- :: function_all_differ
CREATE OR REPLACE FUNCTION holdfast.all_differ(news holdfast.new_job[], plain boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN  -- no id and no key occurs twice
    RETURN cardinality(news) = 1 OR (SELECT count(DISTINCT j.id) = count(*) FROM unnest(news) j) AND (plain OR (
        SELECT count(DISTINCT holdfast.key_name(j.queue, j.task, j.key, j.key_global)) = count(*) FROM unnest(news) j
        WHERE j.key IS NOT NULL));
END $$

-- == free_key: an operator frees the key that a job holds; the job continues without it (R101).
-- Concurrency: job_to_change locks the key's name before the job's row, as does any transaction that takes the key.

-- :: call
SELECT holdfast.free_key(%(id)s, %(by)s, %(now)s)::text

-- :: function_free_key
CREATE OR REPLACE FUNCTION holdfast.free_key(named text, who text, given double precision)
RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    j holdfast.jobs := holdfast.job_to_change(named);
BEGIN
    PERFORM holdfast.refuse_sealed();
    UPDATE holdfast.jobs SET holds_key = false, marks = @with_mark('free_key') WHERE seq = j.seq AND holds_key;
    RETURN (SELECT holdfast.job_record(r) FROM holdfast.jobs r WHERE r.seq = j.seq);
END $$

-- == meet: handle a new job whose id is known, or whose key is held.
-- Takes the job as new_jobs returns it and the turn it would get. Returns the id of the existing job, false (not new),
-- and whether the new job's call replaced that of the existing one.
-- Concurrency: the caller has locked the key; the holder's row is locked here before its state is checked.

-- :: function_enqueue_known
CREATE OR REPLACE FUNCTION holdfast.enqueue_known(new holdfast.new_job, its_turn bigint, at double precision)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    holder holdfast.jobs;
    due double precision := new.due_at;
BEGIN
    PERFORM 1 FROM holdfast.ids WHERE id = new.id;
    IF FOUND THEN RETURN jsonb_build_array(new.id, false, false); END IF;
    holder := holdfast.key_holder(new.queue, new.task, new.key, new.key_global, at);
    SELECT * INTO holder FROM holdfast.jobs WHERE seq = holder.seq AND holds_key FOR UPDATE;
    IF NOT FOUND THEN  -- the holder has just ended: the client retries the whole call
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF new.on_conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', new.key, 'existing_id', holder.id));
    ELSIF new.on_conflict = 'extend' THEN
        UPDATE holdfast.jobs h SET key_window = w.longer,
            prune_at = CASE WHEN h.prune_at IS NOT NULL THEN greatest(h.prune_at, h.created_at + w.longer) END
        FROM (SELECT greatest(holder.key_window, at - holder.created_at + (new.more ->> 'key_window')::double precision)
              AS longer) w
        WHERE h.seq = holder.seq AND h.key_window IS NOT NULL AND new.more ? 'key_window';
        RETURN jsonb_build_array(holder.id, false, false);
    ELSIF new.on_conflict = 'keep' OR holder.state NOT IN ('scheduled', 'waiting', 'ready')
          OR holder.due_at = @DUE_AFTER_PARENTS
          OR EXISTS (SELECT FROM holdfast.steps s WHERE s.job_id = holder.id) THEN  -- it has begun
        RETURN jsonb_build_array(holder.id, false, false);
    END IF;
    IF new.on_conflict = 'debounce' AND holder.due_max IS NOT NULL THEN
        due := least(due, greatest(holder.due_max, at));
    END IF;
    UPDATE holdfast.jobs  -- stays in its own queue, which with a global key may differ from the new job's
    SET state = CASE WHEN due > at THEN 'scheduled' WHEN new.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        priority = new.priority, grp = new.grp, lane = new.lane, rank = holdfast.rank_of(queue, new.priority),
        turn = CASE WHEN due <= at AND turn IS NOT NULL AND grp IS NOT DISTINCT FROM new.grp
                         AND priority = new.priority AND ordinal IS NOT DISTINCT FROM (new.more ->> 'order')::bigint
                    THEN turn
                    WHEN due <= at AND new.grp IS NULL THEN holdfast.turn_of(its_turn, queue, new.priority) END,
        max_stalls = greatest(new.max_stalls, stalls), due_at = due, expires_at = due + new.expires,
        args = new.args, revival = new.revival, options = new.options, held = held AND grp IS NOT DISTINCT FROM new.grp,
        key_until_started = new.more ? 'key_until' IS TRUE, key_window = (new.more ->> 'key_window')::double precision,
        drop_expired = new.more ? 'on_expire' IS TRUE, ordinal = (new.more ->> 'order')::bigint
    WHERE seq = holder.seq;
    RETURN jsonb_build_array(holder.id, false, true);
END $$
