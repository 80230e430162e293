-- floors: scan for ready jobs past the dead index entries of claimed ones. While another session's old snapshot keeps
-- the server from removing them, the head of a lane lies behind all jobs claimed since, and every scan would step over
-- each of them. A worker that knows of such a snapshot remembers how far its lanes are used up and sends that with its
-- next call: {"queues": {queue: {lane: {rank: turn}}}, "call": the ctid of its `calls` row, "full": whether to scan
-- from the start nevertheless}. It sends "full" every second or so, because a job may return with an old turn or commit
-- late. Concurrency: a floor decides where a scan begins, never what may be claimed; rows are locked with SKIP LOCKED.

-- :: function_ranges
-- The ranges to scan in one lane, in index order: ranks with a floor start there, the ranks in between have none.
CREATE OR REPLACE FUNCTION holdfast.ranges(floors jsonb, whole boolean)
RETURNS TABLE (low bigint, high bigint, first bigint) LANGUAGE sql IMMUTABLE AS $$
    WITH known AS (
        SELECT f.key::bigint AS rank, CASE WHEN whole THEN -9223372036854775808 ELSE f.value::bigint END AS turn
        FROM jsonb_each_text(floors) f
    ), edges AS (
        SELECT k.rank, k.rank AS high, k.turn FROM known k
        UNION ALL
        SELECT coalesce(lead(k.rank) OVER (ORDER BY k.rank DESC), -2147483649) + 1, k.rank - 1, -9223372036854775808 FROM known k
        UNION ALL
        SELECT coalesce(max(k.rank), -2147483649) + 1, 2147483647, -9223372036854775808 FROM known k)
    SELECT e.rank, e.high, e.turn FROM edges e WHERE e.rank <= e.high ORDER BY e.high DESC
$$

-- :: function_heads_behind
-- The first `most` ready jobs of a lane past its floors, and the new floors. Floors stay 0.2 s behind the counter
-- (ticks are microseconds) to cover transactions that are about to commit. A lane has floors for at most 16 ranks.
CREATE OR REPLACE FUNCTION holdfast.heads_behind(named text, number smallint, most integer, floors jsonb, whole boolean,
    at double precision, OUT heads bigint[], OUT behind jsonb) LANGUAGE plpgsql AS $$
DECLARE
    recent bigint := (SELECT last_value FROM holdfast.ticks) - 200000;
    span record;
    got record;
    n integer;
BEGIN
    heads := '{}';
    behind := coalesce(floors, '{}');
    FOR span IN SELECT * FROM holdfast.ranges(coalesce(floors, '{}'), whole) LOOP
        WITH ahead AS MATERIALIZED (
            SELECT seq, rank, turn FROM holdfast.jobs
            WHERE state = 'ready' AND queue = named AND lane = number AND rank >= span.low AND rank <= span.high
              AND turn >= span.first AND (expires_at IS NULL OR expires_at > at)
            ORDER BY rank DESC, turn, seq LIMIT most - cardinality(heads) FOR UPDATE SKIP LOCKED)
        SELECT array_agg(seq) AS seqs, array_agg(rank) AS ranks, array_agg(turn) AS turns INTO got FROM ahead;
        heads := heads || coalesce(got.seqs, '{}');
        n := coalesce(cardinality(got.ranks), 0);
        behind := behind || (SELECT coalesce(jsonb_object_agg(r.rank, recent), '{}') FROM unnest(got.ranks) r(rank))
            || CASE WHEN span.low = span.high THEN jsonb_build_object(span.low, recent) ELSE '{}' END;
        IF cardinality(heads) >= most THEN
            behind := behind || jsonb_build_object(got.ranks[n], least(got.turns[n], recent));
            EXIT;
        END IF;
    END LOOP;
    IF (SELECT count(*) FROM jsonb_object_keys(behind)) > 16 THEN
        behind := (SELECT jsonb_object_agg(k.key, k.value) FROM (
            SELECT * FROM jsonb_each(behind) ORDER BY key::bigint DESC LIMIT 16) k);
    END IF;
END $$

-- :: function_with_floors
CREATE OR REPLACE FUNCTION holdfast.with_floors(floors jsonb, way text[], behind jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT floors || jsonb_build_object('queues', coalesce(floors -> 'queues', '{}') || jsonb_build_object(
        way[2], coalesce(floors -> 'queues' -> way[2], '{}') || jsonb_build_object(way[3], behind)))
$$

-- :: function_note_call
-- Each call leaves another dead version of the row. `told` is the ctid of the latest; a lookup by key would visit all.
CREATE OR REPLACE FUNCTION holdfast.note_call(claimer text, number bigint, answers text[], told tid) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE place tid;
BEGIN
    UPDATE holdfast.calls SET last_call = number, last_answers = to_jsonb(answers)
    WHERE ctid = told AND worker = claimer RETURNING ctid INTO place;
    IF place IS NULL THEN
        UPDATE holdfast.calls SET last_call = number, last_answers = to_jsonb(answers)
        WHERE worker = claimer RETURNING ctid INTO place;
    END IF;
    RETURN jsonb_build_object('call', place);
END $$

-- :: function_has_ready_behind
CREATE OR REPLACE FUNCTION holdfast.has_ready_behind(named text, number smallint, floors jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM holdfast.ranges(coalesce(floors, '{}'), false) r CROSS JOIN LATERAL (
        SELECT FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = named AND j.lane = number
        AND j.rank >= r.low AND j.rank <= r.high AND j.turn >= r.first LIMIT 1) x);
END $$
