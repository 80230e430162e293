-- begin: mark leases begun before their handlers start.
-- Fenced by (id, token); a cancel asked for refuses it.

-- :: call
WITH asked AS MATERIALIZED (
    SELECT i.seq, h.value ->> 'token' AS token, h.ordinality AS n
    FROM jsonb_array_elements(%(held)s::jsonb) WITH ORDINALITY h LEFT JOIN holdfast.ids i ON i.id = h.value ->> 'id'
), marked AS (
    UPDATE holdfast.jobs j SET begun = true FROM (SELECT DISTINCT seq, token FROM asked) a
    WHERE j.seq = a.seq AND j.token = a.token AND j.state = 'running' AND NOT j.cancel_requested
    RETURNING j.seq, j.token
)
SELECT coalesce(json_agg(CASE WHEN m.seq IS NOT NULL THEN 'ok' WHEN j.cancel_requested THEN 'cancelled' ELSE 'lost' END
                         ORDER BY a.n), '[]')::text
FROM asked a LEFT JOIN marked m ON m.seq = a.seq AND m.token = a.token
LEFT JOIN holdfast.jobs j ON j.seq = a.seq AND j.token = a.token AND j.state = 'running'
