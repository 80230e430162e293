-- settle: everything written to a lease: outcomes, releases, begin marks and reports.

-- == settle: end a lease with an outcome. Compare-and-change on (id, token); no row means that nothing changed.
-- Safe against concurrent callers: the first one to end the lease clears the token in the same step.

-- :: fragment unleased
token = NULL, worker = NULL, claim_call = NULL

-- :: fragment succeeded(now, prune_at, value)
state = 'succeeded', attempts = attempts + 1, finished_at = @now, prune_at = @prune_at, value = @value, @unleased,
held = 0, suspect = 0

-- :: fragment stalled
-- What a stall counts: nothing for a release.
attempts = attempts + :stalls + :shared_stalls, stalls = stalls + :stalls,
shared_stalls = shared_stalls + :shared_stalls, suspect = suspect OR :stalls + :shared_stalls > 0,
expires_at = CASE WHEN :stalls + :shared_stalls = 0 THEN expires_at END, errors = :errors

-- :: fragment lease_row
-- The fields of settle.LEASE_FIELDS.
seq, id, task, queue, grp, key, attempts, failures, stalls, max_stalls, started_at, fence, worker, begun,
cancel_requested, errors, revival, shared_stalls, suspect, priority

-- :: fragment window_end(j)
-- When the window of its key ends; NULL if it has none: formulas.window_end.
@j.created_at + @j.key_window

-- :: fragment prune_at(at)
-- When a dead job without a dead letter may be pruned: formulas.prune_at.
max(@at, COALESCE(holds_key * (created_at + key_window), 0))

-- :: mark
-- Append to a job's timeline (R65): beyond @MARKS_KEPT_MAX the second entry makes room, so the first one stays.
UPDATE holdfast_jobs
SET marks = json_insert(CASE WHEN NOT COALESCE(json_valid(marks), 0) THEN '[]'
                             WHEN json_array_length(marks) >= @MARKS_KEPT_MAX THEN json_remove(marks, '$[1]')
                             ELSE marks END, '$[#]', json(?))
WHERE seq = ?

-- :: noted
SELECT marks FROM holdfast_jobs WHERE seq = ?

-- :: note
UPDATE holdfast_jobs SET marks = ? WHERE seq = ?

-- :: all_succeeded
UPDATE holdfast_jobs
SET @succeeded(:now, :now + json_extract(j.value, '$[3]'), CAST(json_extract(j.value, '$[4]') AS BLOB))
FROM json_each(:leases) AS j
WHERE seq = json_extract(j.value, '$[0]') AND holdfast_jobs.id = json_extract(j.value, '$[1]')
  AND token = json_extract(j.value, '$[2]')
  AND state = 'running' AND cancel_requested = 0

-- :: succeeded
UPDATE holdfast_jobs
SET @succeeded(?, ?, ?)
WHERE seq = ? AND id = ? AND token = ? AND state = 'running' AND cancel_requested = 0

-- :: groups_of
SELECT DISTINCT queue, grp FROM holdfast_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND grp IS NOT NULL

-- :: done
SELECT seq FROM holdfast_jobs WHERE id IN (SELECT value FROM json_each(?)) AND state = 'succeeded'

-- :: removable
-- Jobs that nothing else in the store refers to.
SELECT seq FROM holdfast_jobs AS j
WHERE seq IN (SELECT value FROM json_each(?)) AND holds_key = 0
  AND NOT EXISTS (SELECT 1 FROM holdfast_edges WHERE parent = j.id)
  AND NOT EXISTS (SELECT 1 FROM holdfast_edges WHERE child = j.id)

-- :: logicals_of
SELECT id, queue, task, key FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?))

-- :: lease
SELECT @lease_row
FROM holdfast_jobs WHERE id = ? AND token = ? AND state = 'running'

-- :: scheduled
UPDATE holdfast_jobs
SET state = 'scheduled', attempts = attempts + :attempts, failures = failures + :failures, due_at = :due_at,
    held = :held, errors = :errors, expires_at = CASE WHEN :attempts = 0 THEN expires_at END,
    turn = NULL, @unleased, suspect = suspect AND :attempts = 0
WHERE seq = :seq

-- :: finished
UPDATE holdfast_jobs
SET state = :state, attempts = attempts + :attempts, failures = failures + :failures, stalls = stalls + :stalls,
    shared_stalls = shared_stalls + :shared_stalls, finished_at = :now, prune_at = :prune_at, reason = :reason,
    counted = counted OR :counted, lane = IIF(lane = 3, 0, lane),
    errors = :errors, @unleased, held = :held,
    suspect = (suspect AND :attempts = 0) OR :stalls + :shared_stalls > 0
WHERE seq = :seq

-- :: end_keys
UPDATE holdfast_jobs AS j
SET holds_key = key_window IS NOT NULL, prune_at = max(prune_at, COALESCE(@window_end(j), 0))
WHERE seq IN (SELECT value FROM json_each(?)) AND holds_key = 1

-- :: close_letter
DELETE FROM holdfast_letters WHERE logical = ?

-- == begin: mark a lease begun before its handler starts.
-- Fenced by (id, token); a requested cancellation refuses it.

-- :: mark
UPDATE holdfast_jobs SET begun = 1 WHERE id = ? AND token = ? AND state = 'running' AND cancel_requested = 0

-- :: held
SELECT cancel_requested FROM holdfast_jobs WHERE id = ? AND token = ? AND state = 'running'

-- == report: progress and log lines of a running job, fenced by (id, token).

-- :: progress
UPDATE holdfast_jobs SET progress = COALESCE(?, progress), progress_text = COALESCE(?, progress_text)
WHERE id = ? AND token = ? AND state = 'running'
RETURNING seq, worker, fence

-- :: newest_line
SELECT COALESCE(max(line), 0) FROM holdfast_logs WHERE job_seq = ?

-- :: line
INSERT INTO holdfast_logs (job_seq, line, at, text) VALUES (?, ?, ?, ?)

-- :: trim
DELETE FROM holdfast_logs WHERE job_seq = ? AND line <= ?

-- == release: end a lease unfinished; the job is claimable again. No counter changes except a stall's, and a stall
-- makes the job a suspect. The turn stays, so it goes before later jobs.

-- :: ready
UPDATE holdfast_jobs
SET state = 'ready', rank = :rank, lane = :lane, @stalled, @unleased
WHERE seq = :seq

-- :: waiting
UPDATE holdfast_jobs
SET state = 'waiting', held = :held, @stalled, @unleased
WHERE seq = :seq
