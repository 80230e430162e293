-- read: the read side of the store, as JSON in the shapes of the records. Never writes.

-- :: function_job_record
-- A StoredJob record without its log lines; a JobRecord is part of it. As json: jsonb would take three times as long.
CREATE OR REPLACE FUNCTION holdfast.job_record(j holdfast.jobs) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('seq', j.seq, 'id', j.id, 'task', j.task, 'queue', j.queue, 'state', j.state,
        'args', holdfast.base64(j.args), 'priority', j.priority, 'group', j.grp, 'key', j.key, 'attempts', j.attempts,
        'failures', j.failures, 'stalls', j.stalls, 'shared_stalls', j.shared_stalls, 'suspect', j.suspect,
        'max_stalls', j.max_stalls, 'created_at', j.created_at, 'due_at', j.due_at, 'expires_at', j.expires_at,
        'started_at', j.started_at, 'finished_at', j.finished_at, 'prune_at', j.prune_at,
        'fence', j.fence, 'worker', j.worker, 'begun', j.begun, 'held', j.held, 'cancel_requested', j.cancel_requested,
        'progress', j.progress, 'progress_text', j.progress_text, 'value', holdfast.base64(j.value),
        'reason', j.reason, 'errors', coalesce(j.errors, '[]'), 'revival', j.revival,
        'options', holdfast.base64(j.options), 'key_scope', CASE WHEN j.key_global THEN 'global' ELSE 'queue' END,
        'key_until', CASE WHEN j.key_until_started THEN 'started' ELSE 'finished' END, 'key_window', j.key_window,
        'holds_key', j.holds_key, 'due_max', j.due_max, 'on_expire', CASE WHEN j.drop_expired THEN 'drop' ELSE 'bury' END,
        'order', j.ordinal,
        'turn', j.turn, 'lane', least(j.lane, 3), 'rank', CASE WHEN j.state = 'ready' THEN j.rank ELSE 0 END)
$$

-- :: function_letter_record
CREATE OR REPLACE FUNCTION holdfast.letter_record(l holdfast.letters) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', l.job_id, 'task', l.task, 'queue', l.queue, 'key', l.key, 'group', l.grp,
        'args', holdfast.base64(l.args), 'failure_count', l.failure_count, 'first_failed_at', l.first_failed_at,
        'failed_at', l.failed_at, 'reason', l.reason, 'error', l.error, 'history', l.history, 'cycles', l.cycles,
        'revive_at', l.revive_at, 'revived_at', l.revived_at)
$$

-- :: jobs
SELECT holdfast.job_record(j)::text FROM holdfast.jobs j

-- :: scan
-- Jobs of the walk that meet the conditions, newest first, and how many there are without the bound in bytes. Jobs
-- beyond that bound are not read: a job's record is looked up only once it is known to be needed.
SELECT r.record, t.met FROM (
    SELECT s.seq, s.due_at, sum(s.size) OVER (ORDER BY <order>) - s.size AS sooner, count(*) OVER () AS met FROM (
        SELECT w.seq, w.due_at, octet_length(w.args) + coalesce(octet_length(w.value), 0)
                      + coalesce(pg_column_size(w.errors), 0) AS size
        FROM (<walk>) w WHERE <where> ORDER BY <order> LIMIT %(limit)s) s) t
CROSS JOIN LATERAL (SELECT <record>::text AS record FROM holdfast.jobs j WHERE j.seq = t.seq OFFSET 0) r
WHERE t.sooner < %(bytes)s ORDER BY <order>

-- :: tally
-- How many jobs meet the conditions, and how many were examined, by name.
SELECT <by>, count(*) FILTER (WHERE <where>), count(*) FROM (<walk>) w GROUP BY 1

-- :: scanned
-- How many jobs the walk has, down to the position it reached, and the last of them.
SELECT count(*), min(w.seq) FROM (<walk>) w WHERE w.seq >= %(down_to)s

-- :: whole
holdfast.job_record(j)

-- :: light
json_build_object('seq', j.seq, 'id', j.id, 'task', j.task, 'queue', j.queue, 'state', j.state, 'args', 'e30=',
    'priority', j.priority, 'group', j.grp, 'key', j.key, 'attempts', j.attempts, 'failures', j.failures,
    'stalls', j.stalls, 'created_at', j.created_at, 'due_at', j.due_at, 'started_at', j.started_at,
    'finished_at', j.finished_at, 'worker', j.worker, 'reason', j.reason, 'order', j.ordinal)

-- :: walk_all
SELECT * FROM holdfast.jobs WHERE seq < %(below)s ORDER BY seq DESC LIMIT %(rows)s

-- :: walk_rare
SELECT * FROM holdfast.jobs WHERE state IN ('dead', 'cancelled') AND state = %(state)s AND seq < %(below)s
ORDER BY state DESC, seq DESC LIMIT %(rows)s

-- :: scanned_by_due
SELECT count(*), (array_agg(w.seq ORDER BY w.due_at DESC, w.seq DESC))[1], max(w.due_at) FROM (<walk>) w
WHERE %(down_to)s < 0 OR (w.due_at, w.seq) <= (%(down_due)s, %(down_to)s)

-- :: walk_due
SELECT * FROM holdfast.jobs
WHERE state = 'scheduled' AND (due_at, seq) > (%(beyond)s::float8, %(after)s) ORDER BY due_at, seq LIMIT %(rows)s

-- :: walk_few
SELECT j.* FROM unnest(%(seqs)s::bigint[]) AS c(seq)
CROSS JOIN LATERAL (SELECT * FROM holdfast.jobs j WHERE j.seq = c.seq OFFSET 0) j

-- :: seqs_by_prefix
SELECT seq FROM holdfast.ids WHERE id >= %(low)s AND id < %(high)s LIMIT %(most)s

-- :: seqs_by_end
-- Reads all ids if there are no more than `rows`; the last row is how many there are, up to that number.
(SELECT i.seq FROM (SELECT id, seq FROM holdfast.ids LIMIT %(rows)s) i
 WHERE right(i.id, %(length)s) = %(end)s LIMIT %(most)s)
UNION ALL
SELECT count(*) FROM (SELECT 1 FROM holdfast.ids LIMIT %(rows)s) n

-- :: seqs_by_state
SELECT seq FROM holdfast.jobs WHERE <where> LIMIT %(most)s

-- :: page
-- A page of all jobs, bounded in rows and bytes; the job that exceeds the bytes is the last.
WITH sized AS MATERIALIZED (
    SELECT p.seq, sum(p.size) OVER (ORDER BY p.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM (
        SELECT seq, octet_length(args) + coalesce(octet_length(value), 0) AS size
        FROM holdfast.jobs WHERE seq > %(after)s ORDER BY seq LIMIT 10000) p)
SELECT holdfast.job_record(j)::text, token, turn, CASE WHEN state = 'ready' THEN rank ELSE 0 END, least(lane, 3), claim_call,
    prune_at FROM sized s JOIN holdfast.jobs j ON j.seq = s.seq
WHERE coalesce(s.before, 0) <= %(bytes_max)s ORDER BY j.seq

-- :: letters_page
WITH sized AS MATERIALIZED (
    SELECT p.logical, sum(p.size) OVER (ORDER BY p.logical ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT logical, octet_length(args) AS size
          FROM holdfast.letters WHERE logical > %(after)s ORDER BY logical LIMIT 10000) p)
SELECT holdfast.letter_record(l)::text, l.logical FROM sized s JOIN holdfast.letters l ON l.logical = s.logical
WHERE coalesce(s.before, 0) <= %(bytes_max)s ORDER BY l.logical

-- :: letters
SELECT (holdfast.letter_record(l) || jsonb_build_object('options', (
    SELECT holdfast.base64(j.options) FROM holdfast.ids i JOIN holdfast.jobs j ON j.seq = i.seq WHERE i.id = l.job_id)
))::text FROM holdfast.letters l

-- :: waking
SELECT 1 FROM holdfast.flows WHERE wakes_at IS NOT NULL AND kind = 'group' AND queue = ANY (%(queues)s) LIMIT 1

-- :: rearranging
SELECT 1 FROM holdfast.rearranging LIMIT 1

-- :: worker_beyond
SELECT w.id, w.deadline, coalesce(c.last_call, 0) FROM holdfast.workers w LEFT JOIN holdfast.calls c ON c.worker = w.id
ORDER BY w.id

-- :: all_logs
SELECT j.id, l.at, l.text FROM holdfast.logs l JOIN holdfast.jobs j ON j.seq = l.job_seq ORDER BY l.job_seq, l.line

-- :: all_marks
SELECT id, marks::text FROM holdfast.jobs WHERE marks IS NOT NULL ORDER BY seq

-- :: marks
SELECT marks::text FROM holdfast.jobs
WHERE seq = (SELECT seq FROM holdfast.ids WHERE id = %(id)s) AND marks IS NOT NULL

-- :: count
SELECT queue, state, count(*) FROM holdfast.jobs
WHERE (%(queue)s::text IS NULL OR queue = %(queue)s) GROUP BY queue, state

-- :: seq
SELECT seq FROM holdfast.ids WHERE id = %(id)s

-- :: logs
SELECT at, text FROM holdfast.logs
WHERE job_seq = (SELECT seq FROM holdfast.ids WHERE id = %(id)s) ORDER BY line

-- :: queues
SELECT jsonb_build_object('name', name, 'group_limit', group_limit, 'group_order', group_order, 'limit', job_limit,
    'rate', rate, 'group_rate', group_rate, 'aging', aging, 'on_dead', on_dead,
    'order_window', order_window, 'dead_queue', dead_queue)::text FROM holdfast.queues ORDER BY name

-- :: tasks
SELECT jsonb_build_object('name', name, 'limit', job_limit, 'rate', rate, 'apart', apart, 'retain_count', retain_count,
    'retain_dead', retain_dead, 'retain_dead_count', retain_dead_count)::text FROM holdfast.tasks ORDER BY name

-- :: running
SELECT task, count(*) FROM holdfast.jobs WHERE state = 'running' GROUP BY task

-- :: overrides
SELECT jsonb_build_object('queue', CASE WHEN kind <> 'task' THEN queue END, 'group', CASE kind WHEN 'group' THEN name END,
    'task', CASE kind WHEN 'task' THEN name END, 'limit', job_limit, 'rate', rate, 'apart', apart,
    'weight', weight)::text
FROM holdfast.overrides
ORDER BY queue, CASE kind WHEN 'group' THEN name ELSE '' END, name

-- :: flows
SELECT jsonb_build_object('queue', CASE WHEN kind <> 'task' THEN queue END, 'group', CASE kind WHEN 'group' THEN name END,
    'task', CASE kind WHEN 'task' THEN name END, 'spent_until', spent_until, 'shut_until', shut_until,
    'wakes_at', wakes_at)::text FROM holdfast.flows
ORDER BY queue, CASE kind WHEN 'group' THEN name ELSE '' END, name

-- :: pauses
SELECT kind, queue, name, reason, paused_by, paused_at FROM holdfast.pauses
ORDER BY queue, CASE kind WHEN 'group' THEN name ELSE '' END, name

-- :: ended
SELECT j.id, CASE WHEN j.state IN ('succeeded', 'cancelled', 'dead') THEN holdfast.job_record(j) END::text
FROM holdfast.ids i JOIN holdfast.jobs j ON j.seq = i.seq WHERE i.id = ANY (%(ids)s::text[])

-- :: oldest_ready
-- Exact up to 10,000 ready jobs of a queue; beyond that, the oldest of the first 10,000 in index order.
SELECT q.queue, (SELECT min(r.due_at) FROM (
    SELECT j.due_at FROM holdfast.jobs j WHERE j.state = 'ready' AND j.queue = q.queue LIMIT 10000) r)
FROM unnest(%(queues)s::text[]) AS q(queue)

-- :: groups
SELECT n.queue, n.name, l.most, o.job_limit, to_jsonb(l.rate)::text, to_jsonb(o.rate)::text,
    (SELECT jsonb_build_object('queue', f.queue, 'group', f.name, 'spent_until', f.spent_until,
                               'shut_until', f.shut_until, 'wakes_at', f.wakes_at)::text FROM holdfast.flows f
     WHERE f.kind = 'group' AND f.queue = n.queue AND f.name = n.name),
    holdfast.is_strict(n.queue, n.name), holdfast.group_counts(n.queue, n.name), holdfast.group_head(n.queue, n.name),
    (SELECT j.id FROM holdfast.jobs j WHERE j.queue = n.queue AND j.grp = n.name AND @in_play(j) AND j.state = 'dead'
     ORDER BY j.priority DESC, j.seq LIMIT 1), coalesce(o.weight, 1)
FROM (SELECT p.queue, p.grp AS name
      FROM unnest(CASE WHEN %(name)s::text IS NULL THEN holdfast.groups_known(%(queue)s, %(limit)s)
                       ELSE ARRAY[ROW(%(queue)s, %(name)s)::holdfast.place] END) p) n
CROSS JOIN LATERAL holdfast.limits(ARRAY[ROW(n.queue, n.name)::holdfast.place]) l
LEFT JOIN holdfast.overrides o ON o.kind = 'group' AND o.queue = n.queue AND o.name = n.name
ORDER BY n.queue, n.name

-- :: function_groups_known
-- Groups with unfinished jobs, an override or a pause, by queue and name; skips through the partial indexes.
CREATE OR REPLACE FUNCTION holdfast.groups_known(asked text, most integer) RETURNS holdfast.place[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    last holdfast.place := ROW(coalesce(asked, ''), '')::holdfast.place;
    found_places holdfast.place[] := '{}';
BEGIN
    WHILE cardinality(found_places) < most LOOP
        SELECT u.queue, u.grp INTO last.queue, last.grp FROM (
            (SELECT j.queue, j.grp FROM holdfast.jobs j
             WHERE j.state = 'waiting' AND (j.queue, j.grp) > (last.queue, last.grp) ORDER BY j.queue, j.grp LIMIT 1)
            UNION ALL
            (SELECT j.queue, j.grp FROM holdfast.jobs j
             WHERE j.state = 'scheduled' AND j.grp IS NOT NULL AND (j.queue, j.grp) > (last.queue, last.grp)
             ORDER BY j.queue, j.grp LIMIT 1)
            UNION ALL
            (SELECT j.queue, j.grp FROM holdfast.jobs j
             WHERE @in_play(j)
               AND (j.queue, j.grp) > (last.queue, last.grp) ORDER BY j.queue, j.grp LIMIT 1)
            UNION ALL
            (SELECT o.queue, o.name FROM holdfast.overrides o
             WHERE o.kind = 'group' AND (o.queue, o.name) > (last.queue, last.grp) ORDER BY o.queue, o.name LIMIT 1)
            UNION ALL
            (SELECT p.queue, p.name FROM holdfast.pauses p
             WHERE p.kind = 'group' AND (p.queue, p.name) > (last.queue, last.grp) ORDER BY p.queue, p.name LIMIT 1)) u
        ORDER BY u.queue, u.grp LIMIT 1;
        EXIT WHEN NOT FOUND OR last.queue <> asked;
        found_places := found_places || last;
    END LOOP;
    RETURN found_places;
END $$

-- :: function_group_counts
-- Up to 1001 in each state, one more than GROUP_COUNT_MAX: a group of any size takes no longer.
CREATE OR REPLACE FUNCTION holdfast.group_counts(queued text, named text) RETURNS jsonb LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT jsonb_object_agg(c.state, c.number) FILTER (WHERE c.number > 0) FROM (
        SELECT 'waiting' AS state, count(*) AS number FROM (
            SELECT 1 FROM holdfast.jobs
            WHERE state = 'waiting' AND queue = queued AND grp = named LIMIT 1001) w
        UNION ALL
        SELECT 'scheduled', count(*) FROM (
            SELECT 1 FROM holdfast.jobs
            WHERE state = 'scheduled' AND grp IS NOT NULL AND queue = queued AND grp = named LIMIT 1001) s
        UNION ALL
        SELECT s.state, count(*) FROM (VALUES ('ready'), ('running')) s(state) CROSS JOIN LATERAL (
            SELECT 1 FROM holdfast.jobs j
            WHERE @in_play(j)
              AND j.queue = queued AND j.grp = named AND j.state = s.state LIMIT 1001) p
        GROUP BY s.state) c
$$

-- :: function_group_head
-- The running job, else the ready one, else the one that backs off at the head, else the dead one that stops the group,
-- else the first waiting one, else the first scheduled one; if a group has more than 1,000 in play or scheduled, of those that come first in the index.
CREATE OR REPLACE FUNCTION holdfast.group_head(queued text, named text) RETURNS text LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT coalesce(
        (SELECT p.id FROM (
             SELECT j.id, j.state, j.priority, j.ordinal, j.seq FROM holdfast.jobs j
             WHERE @in_play(j)
               AND j.queue = queued AND j.grp = named LIMIT 1000) p
         ORDER BY p.state <> 'running', p.state <> 'ready', p.state = 'dead', p.priority DESC,
                  p.ordinal NULLS FIRST, p.seq LIMIT 1),
        (SELECT j.id FROM holdfast.jobs j WHERE j.state = 'waiting' AND j.queue = queued AND j.grp = named
         ORDER BY @group_order(j) LIMIT 1),
        (SELECT d.id FROM (
             SELECT j.id, j.priority, j.ordinal, j.seq FROM holdfast.jobs j
             WHERE j.state = 'scheduled' AND j.grp IS NOT NULL AND j.queue = queued AND j.grp = named
             ORDER BY j.due_at LIMIT 1000) d
         ORDER BY d.priority DESC, d.ordinal NULLS FIRST, d.seq LIMIT 1))
$$

-- :: workers
SELECT jsonb_build_object('id', w.id, 'host', w.host, 'pid', w.pid, 'boot_id', w.boot_id,
    'pid_namespace', w.pid_namespace, 'lease_seconds', w.lease_seconds, 'queues', w.queues, 'slots', w.slots,
    'isolates', w.isolates, 'started_at', w.started_at, 'renewed_at', w.renewed_at, 'expired', w.deadline <= s.now,
    'portrait', holdfast.base64(w.portrait),
    'running', (SELECT count(*) FROM holdfast.jobs j WHERE j.state = 'running' AND j.worker = w.id))::text
FROM holdfast.workers w CROSS JOIN holdfast.store_now(%(now)s) s(now) ORDER BY w.started_at, w.id
