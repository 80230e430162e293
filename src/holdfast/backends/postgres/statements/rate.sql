-- rate: the arithmetic of buckets, word for word that of rates.py: the same operations in the same order on doubles.
-- Takes a rate that is in force and the bucket's number. Pure; who writes the number holds what guards it (allow.sql).

-- :: function_makes_sense
-- A rate that somebody else wrote may say anything; one that makes no sense holds nothing back, and `flaws` lists it.
CREATE OR REPLACE FUNCTION holdfast.makes_sense(r holdfast.rate) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((r).count > 0 AND (r).seconds > 0 AND (r).seconds < 'Infinity' AND ((r).burst IS NULL OR (r).burst > 0), false)
$$

-- :: function_every
CREATE OR REPLACE FUNCTION holdfast.every(r holdfast.rate) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT holdfast.makes_sense(r) THEN 0 WHEN (r).burst IS NULL
                THEN (r).seconds * (1.0::double precision + 0.01::double precision) / (r).count
                ELSE (r).seconds / (r).count END
$$

-- :: function_slack
CREATE OR REPLACE FUNCTION holdfast.slack(r holdfast.rate) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT holdfast.makes_sense(r) THEN 0 WHEN (r).burst IS NULL THEN (r).seconds * 0.01::double precision
                ELSE ((r).burst - 1) * (r).seconds / (r).count END
$$

-- :: function_bounded
CREATE OR REPLACE FUNCTION holdfast.bounded(r holdfast.rate, spent double precision, at double precision)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE empty double precision := at + holdfast.slack(r) + holdfast.every(r);
BEGIN
    RETURN CASE WHEN spent > empty + holdfast.every(r) THEN empty ELSE spent END;
END $$

-- :: function_allowed
CREATE OR REPLACE FUNCTION holdfast.allowed(r holdfast.rate, spent double precision, at double precision)
RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE room double precision := holdfast.slack(r) + 0.000001::double precision - greatest(spent - at, 0);
BEGIN
    RETURN CASE WHEN NOT holdfast.makes_sense(r) THEN 1000000000 WHEN room < 0 THEN 0 ELSE floor(room / holdfast.every(r))::integer + 1 END;
END $$

-- :: function_charged
CREATE OR REPLACE FUNCTION holdfast.charged(r holdfast.rate, spent double precision, at double precision,
                                            starts integer) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(spent, at) + starts * holdfast.every(r)
$$

-- :: function_opens_at
CREATE OR REPLACE FUNCTION holdfast.opens_at(r holdfast.rate, spent double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT spent - holdfast.slack(r)
$$

-- :: function_in_force
-- What an operator said, else what was declared; nothing where that is UNLIMITED, which lifts every rate.
CREATE OR REPLACE FUNCTION holdfast.in_force(said holdfast.rate, declared holdfast.rate)
RETURNS holdfast.rate LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (coalesce(said, declared)).count < 1000000000 THEN coalesce(said, declared) END
$$
