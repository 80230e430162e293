-- meet: what becomes of a new job whose id is known, or whose key is held.
-- Takes the job as enqueue.sql read it and the turn it would get. Returns the id that counts, whether it is new, whether
-- the call of the job that was there was replaced.
-- Safe against a rival: the caller locked the key; the holder's row is locked here before it is judged.

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
    IF NOT FOUND THEN  -- it ended a moment ago: the whole call is made anew
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
    ELSIF new.on_conflict = 'raise' THEN
        PERFORM holdfast.refuse('HF003', jsonb_build_object('key', new.key, 'existing_id', holder.id));
    ELSIF new.on_conflict = 'keep' OR holder.state NOT IN ('scheduled', 'waiting', 'ready') THEN
        RETURN jsonb_build_array(holder.id, false, false);
    END IF;
    IF new.on_conflict = 'debounce' AND holder.due_max IS NOT NULL THEN
        due := least(due, greatest(holder.due_max, at));
    END IF;
    UPDATE holdfast.jobs  -- in its own queue, which a global key may find another than the new call's
    SET state = CASE WHEN due > at THEN 'scheduled' WHEN new.grp IS NULL THEN 'ready' ELSE 'waiting' END,
        priority = new.priority, grp = new.grp, lane = new.lane, rank = holdfast.rank_of(queue, new.priority),
        turn = CASE WHEN due <= at AND turn IS NOT NULL AND grp IS NOT DISTINCT FROM new.grp
                         AND priority = new.priority THEN turn
                    WHEN due <= at AND new.grp IS NULL THEN its_turn - holdfast.age_shift(queue, new.priority) END,
        max_stalls = greatest(new.max_stalls, stalls), due_at = due, expires_at = due + new.expires,
        args = new.args, revival = new.revival, options = new.options, held = held AND grp IS NOT DISTINCT FROM new.grp,
        key_until_started = new.more ? 'key_until' IS TRUE, key_window = (new.more ->> 'key_window')::double precision,
        drop_expired = new.more ? 'on_expire' IS TRUE
    WHERE seq = holder.seq;
    RETURN jsonb_build_array(holder.id, false, true);
END $$
