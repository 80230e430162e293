-- renew: move a worker's deadline; one write however many leases it holds.
-- The deadline is written first and waits for nobody. Leases of seen claims that are not named are given back.

-- :: call
SELECT holdfast.renew(%(worker)s, %(held)s::jsonb, %(seen)s, %(portrait)s::bytea, %(now)s)::text

-- :: function_renew
CREATE OR REPLACE FUNCTION holdfast.renew(renewing text, held jsonb, seen bigint, shown bytea, given double precision)
RETURNS jsonb LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    at double precision := holdfast.store_now(given);
    unnamed jsonb;
    answer jsonb;
    elsewhere text[];
BEGIN
    UPDATE holdfast.workers SET deadline = at + lease_seconds, renewed_at = at, portrait = coalesce(shown, portrait)
    WHERE id = renewing;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('known', false, 'lost',
            (SELECT coalesce(jsonb_agg(h -> 'id'), '[]') FROM jsonb_array_elements(held) h));
    END IF;
    WITH named AS MATERIALIZED (
        SELECT h.value ->> 'id' AS id, h.value ->> 'token' AS token, h.ordinality AS n
        FROM jsonb_array_elements(held) WITH ORDINALITY h
    ), ours AS MATERIALIZED (
        SELECT j.id, j.token, j.claim_call, j.cancel_requested, j.seq FROM holdfast.jobs j
        WHERE j.state = 'running' AND j.worker = renewing
    )
    SELECT jsonb_build_object(
               'lost', coalesce(jsonb_agg(n.id ORDER BY n.n) FILTER (WHERE n.id IS NOT NULL AND o.id IS NULL), '[]'),
               'cancelled', coalesce(jsonb_agg(n.id ORDER BY n.n)
                                     FILTER (WHERE n.id IS NOT NULL AND o.cancel_requested), '[]')),
           jsonb_agg(jsonb_build_object('id', o.id, 'token', o.token, 'delay', 0) ORDER BY o.seq)
               FILTER (WHERE n.id IS NULL AND o.claim_call <= seen)
    INTO answer, unnamed
    FROM named n FULL JOIN ours o ON o.id = n.id AND o.token = n.token;
    IF unnamed IS NULL THEN RETURN answer; END IF;
    PERFORM holdfast.share_rules();
    elsewhere := holdfast.release_unseen(unnamed, at);
    RETURN answer || jsonb_build_object('released', (SELECT coalesce(jsonb_agg(u -> 'id'), '[]')
        FROM jsonb_array_elements(unnamed) u WHERE u ->> 'token' <> ALL (elsewhere)));
END $$
