-- discard: an operator removes a dead letter; its job stays dead and may be pruned.

-- :: call
SELECT holdfast.discard(%(id)s, %(now)s)::text

-- :: function_discard
CREATE OR REPLACE FUNCTION holdfast.discard(named text, given double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    letter holdfast.letters;
    j holdfast.jobs;
BEGIN
    PERFORM holdfast.share_rules();
    PERFORM holdfast.refuse_sealed();
    SELECT * INTO letter FROM holdfast.letters WHERE job_id = named FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM holdfast.refuse('HF001', jsonb_build_object('job_id', named, 'what', 'dead letter'));
    END IF;
    SELECT * INTO j FROM holdfast.jobs WHERE seq = (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) FOR UPDATE;
    IF j.state <> 'dead' THEN
        PERFORM holdfast.refuse_state(j, 'discard');
    END IF;
    DELETE FROM holdfast.letters WHERE job_id = named;
    PERFORM holdfast.let_go(named, 'discarded', at);
    RETURN holdfast.letter_record(letter);
END $$
