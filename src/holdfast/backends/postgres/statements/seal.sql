-- seal: close a store for work, or open it again; compared with what was there and exchanged in one step.
-- Safe against rivals: the row is locked FOR UPDATE, which waits for every caller's transaction that enqueued (each holds
-- it FOR KEY SHARE to its end, see function_stay_open); then the rules are held alone, which waits for every step of ours
-- under way. Who comes later looks at `closed` in a statement after its lock, and sees the new seal. The row is locked
-- before the rules, so that no worker waits while a caller takes its time.

-- :: record
SELECT record FROM holdfast.seal WHERE record IS NOT NULL

-- :: take
SELECT record FROM holdfast.seal FOR UPDATE

-- :: alone
SELECT holdfast.own_rules()

-- :: store
UPDATE holdfast.seal SET closed = %(closed)s, record = %(record)s

-- :: content
SELECT (SELECT count(*) FROM holdfast.jobs), (SELECT count(*) FROM holdfast.letters),
       (SELECT count(*) FROM holdfast.overrides), (SELECT count(*) FROM holdfast.pauses),
       (SELECT count(*) FROM holdfast.entries WHERE NOT declared)

-- :: forget_rules
WITH q AS (DELETE FROM holdfast.queues), t AS (DELETE FROM holdfast.tasks), b AS (DELETE FROM holdfast.bounds),
     f AS (DELETE FROM holdfast.flows), r AS (DELETE FROM holdfast.retained)
DELETE FROM holdfast.entries

-- :: function_refuse_sealed
CREATE OR REPLACE FUNCTION holdfast.refuse_sealed() RETURNS void LANGUAGE plpgsql AS $$
DECLARE facts text;
BEGIN  -- the caller holds the rules, shared or alone
    SELECT record INTO facts FROM holdfast.seal WHERE closed;
    IF FOUND THEN PERFORM holdfast.refuse('HF005', facts::jsonb); END IF;
END $$

-- :: function_stay_open
-- In a caller's transaction, before its first job: the store stays open until that transaction ends, or it is refused.
-- A row lock and not an advisory one, because a caller's older snapshot must not hide the seal: then it fails to lock.
CREATE OR REPLACE FUNCTION holdfast.stay_open() RETURNS void LANGUAGE plpgsql AS $$
DECLARE s holdfast.seal;
BEGIN
    SELECT * INTO s FROM holdfast.seal FOR KEY SHARE;
    IF s.closed THEN PERFORM holdfast.refuse('HF005', s.record::jsonb); END IF;
END $$
