-- ids: which ids are known. A job's id is taken before its row is stored.
-- Safe against a rival: the unique index of ids decides. Only an open transaction that takes the same id can make this
-- wait (see insert_plain in store.sql).

-- :: function_take_ids
-- Of these jobs, each id once, those whose ids were not known, in their order, and the seqs they got.
CREATE OR REPLACE FUNCTION holdfast.take_ids(news holdfast.new_job[], OUT fresh holdfast.new_job[], OUT seqs bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    WITH numbered AS MATERIALIZED (
        SELECT o.id, nextval('holdfast.jobs_seq_seq') AS seq
        FROM (SELECT j.id FROM unnest(news) j ORDER BY j.n) o
    ), taken AS (INSERT INTO holdfast.ids (id, seq) SELECT id, seq FROM numbered ON CONFLICT DO NOTHING RETURNING seq)
    SELECT coalesce(array_agg(seq ORDER BY seq), '{}') INTO seqs FROM taken;
    fresh := news;
    IF cardinality(seqs) < cardinality(news) THEN
        fresh := ARRAY(SELECT j FROM unnest(news) j JOIN holdfast.ids i ON i.id = j.id
                       WHERE i.seq = ANY (seqs) ORDER BY j.n);
    END IF;
END $$

-- :: function_drop_ids
CREATE OR REPLACE FUNCTION holdfast.drop_ids(taken holdfast.new_job[], made text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- their keys were held, so they were not stored
    IF cardinality(taken) > coalesce(cardinality(made), 0) THEN
        DELETE FROM holdfast.ids i USING unnest(taken) t WHERE i.id = t.id AND (made IS NULL OR t.id <> ALL (made));
    END IF;
END $$
