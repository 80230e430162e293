-- The whole store, version 1. Every table is prefixed, so that it can live beside the caller's own tables.
-- The CHECKs and partial unique indexes say the rules of lifecycle.py a second time.

CREATE TABLE holdfast_jobs (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of enqueue; never changes, never comes again
    id               TEXT    NOT NULL UNIQUE,            -- made by the producer
    task             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    grp              TEXT,
    key              TEXT,
    lane             INTEGER NOT NULL,                   -- 0 ungrouped, 1 grouped, 2 parked (task paused)
    turn             INTEGER,                            -- order of becoming claimable
    attempts         INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    stalls           INTEGER NOT NULL DEFAULT 0,
    max_stalls       INTEGER NOT NULL,
    created_at       REAL    NOT NULL,
    due_at           REAL    NOT NULL,
    expires_at       REAL,
    started_at       REAL,
    finished_at      REAL,
    prune_at         REAL,
    token            TEXT,
    fence            INTEGER NOT NULL DEFAULT 0,
    worker           TEXT,
    claim_call       INTEGER,
    begun            INTEGER NOT NULL DEFAULT 0,
    held             INTEGER NOT NULL DEFAULT 0,         -- head of its strict group, also while it backs off
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    progress         REAL,
    progress_text    TEXT,
    reason           TEXT,
    args             BLOB    NOT NULL,
    value            BLOB,
    errors           BLOB,
    revival          BLOB,
    options          BLOB,
    -- One expression, because it is evaluated at every write.
    CHECK (CASE state
           WHEN 'running' THEN token IS NOT NULL AND worker IS NOT NULL AND finished_at IS NULL
           WHEN 'ready' THEN token IS NULL AND worker IS NULL AND finished_at IS NULL AND turn IS NOT NULL
           WHEN 'succeeded' THEN token IS NULL AND worker IS NULL AND finished_at IS NOT NULL
           WHEN 'waiting' THEN token IS NULL AND worker IS NULL AND finished_at IS NULL AND grp IS NOT NULL
           WHEN 'scheduled' THEN token IS NULL AND worker IS NULL AND finished_at IS NULL
           WHEN 'dead' THEN token IS NULL AND worker IS NULL AND finished_at IS NOT NULL AND reason IS NOT NULL
           WHEN 'cancelled' THEN token IS NULL AND worker IS NULL AND finished_at IS NOT NULL
           ELSE 0 END)
) STRICT;

-- What claim reads: nothing but claimable jobs, in the order they are taken.
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, lane, priority DESC, turn, seq) WHERE state = 'ready';
CREATE INDEX holdfast_jobs_scheduled ON holdfast_jobs (due_at, seq) WHERE state = 'scheduled';
CREATE INDEX holdfast_jobs_running ON holdfast_jobs (worker) WHERE state = 'running';
-- What refill reads: who comes next in a group, and what the group has in play.
CREATE INDEX holdfast_jobs_waiting ON holdfast_jobs (queue, grp, held DESC, priority DESC, seq)
    WHERE state = 'waiting';
CREATE INDEX holdfast_jobs_group_due ON holdfast_jobs (queue, grp, due_at)
    WHERE state = 'scheduled' AND grp IS NOT NULL;
CREATE INDEX holdfast_jobs_in_play ON holdfast_jobs (queue, grp)
    WHERE grp IS NOT NULL AND (state IN ('ready', 'running') OR (state = 'scheduled' AND held = 1));
-- One live job per key.
CREATE UNIQUE INDEX holdfast_jobs_live_key ON holdfast_jobs (queue, task, key)
    WHERE key IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready', 'running');
CREATE INDEX holdfast_jobs_prune ON holdfast_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX holdfast_jobs_expires ON holdfast_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'waiting', 'ready');

-- One dead letter per logical job.
CREATE TABLE holdfast_letters (
    logical         TEXT PRIMARY KEY,                    -- queue, task and key, or the id
    job_id          TEXT    NOT NULL UNIQUE,             -- the job that died latest
    task            TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    key             TEXT,
    grp             TEXT,
    args            BLOB    NOT NULL,
    failure_count   INTEGER NOT NULL CHECK (failure_count >= 1),
    first_failed_at REAL    NOT NULL,
    failed_at       REAL    NOT NULL,
    reason          TEXT    NOT NULL,
    error           BLOB,
    history         BLOB,
    cycles          INTEGER NOT NULL DEFAULT 0,
    revive_at       REAL,
    revived_at      REAL
) STRICT;
CREATE INDEX holdfast_letters_revive ON holdfast_letters (revive_at) WHERE revive_at IS NOT NULL;
CREATE INDEX holdfast_letters_failed ON holdfast_letters (failed_at);

CREATE TABLE holdfast_workers (
    id            TEXT PRIMARY KEY,
    host          TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    boot_id       TEXT    NOT NULL,
    pid_namespace TEXT    NOT NULL,
    lease_seconds REAL    NOT NULL,
    queues        TEXT    NOT NULL,                      -- JSON
    slots         INTEGER NOT NULL,
    started_at    REAL    NOT NULL,
    renewed_at    REAL    NOT NULL,
    deadline      REAL    NOT NULL,                      -- on the steady clock of the boot below
    deadline_boot TEXT    NOT NULL,                      -- '' where a test gave the time
    last_call     INTEGER NOT NULL DEFAULT 0,
    last_answers  TEXT                                   -- JSON, of the call numbered last_call
) STRICT;

CREATE TABLE holdfast_queues (
    name        TEXT PRIMARY KEY,
    group_limit INTEGER NOT NULL CHECK (group_limit >= 1),
    group_order TEXT    NOT NULL CHECK (group_order IN ('strict', 'relaxed')),
    CHECK (group_order = 'relaxed' OR group_limit = 1)
) STRICT;

CREATE TABLE holdfast_groups (                           -- operator's overrides
    queue       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    group_limit INTEGER NOT NULL CHECK (group_limit >= 1),
    PRIMARY KEY (queue, name)
) STRICT;

CREATE TABLE holdfast_pauses (
    kind      TEXT NOT NULL CHECK (kind IN ('queue', 'group', 'task')),
    queue     TEXT NOT NULL DEFAULT '',
    name      TEXT NOT NULL DEFAULT '',                  -- group or task
    reason    TEXT NOT NULL,
    paused_by TEXT NOT NULL,
    paused_at REAL NOT NULL,
    PRIMARY KEY (kind, queue, name)
) STRICT;

CREATE TABLE holdfast_logs (
    job_seq INTEGER NOT NULL,
    line    INTEGER NOT NULL,
    at      REAL    NOT NULL,
    text    TEXT    NOT NULL,
    PRIMARY KEY (job_seq, line)
) STRICT, WITHOUT ROWID;

-- The one growing counter behind fences and turns.
CREATE TABLE holdfast_ticks (only INTEGER PRIMARY KEY CHECK (only = 1), tick INTEGER NOT NULL) STRICT;
INSERT INTO holdfast_ticks (only, tick) VALUES (1, 0);
