-- report: progress and log lines of a running job, fenced by (id, token).

-- :: progress
UPDATE holdfast_jobs SET progress = COALESCE(?, progress), progress_text = COALESCE(?, progress_text)
WHERE id = ? AND token = ? AND state = 'running'
RETURNING seq

-- :: newest_line
SELECT COALESCE(max(line), 0) FROM holdfast_logs WHERE job_seq = ?

-- :: line
INSERT INTO holdfast_logs (job_seq, line, at, text) VALUES (?, ?, ?, ?)

-- :: trim
DELETE FROM holdfast_logs WHERE job_seq = ? AND line <= ?
