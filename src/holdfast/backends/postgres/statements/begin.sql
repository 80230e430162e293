-- begin: mark leases begun before their handlers start.
-- Fenced by (id, token); a cancel asked for refuses it.

-- :: call
WITH asked AS MATERIALIZED (
    SELECT h.value ->> 'id' AS id, h.value ->> 'token' AS token, h.ordinality AS n
    FROM jsonb_array_elements(%(held)s::jsonb) WITH ORDINALITY h
), marked AS (
    UPDATE holdfast.jobs j SET begun = true FROM (SELECT DISTINCT id, token FROM asked) a
    WHERE j.id = a.id AND j.token = a.token AND j.state = 'running' AND NOT j.cancel_requested
    RETURNING j.id, j.token
)
SELECT coalesce(json_agg(CASE WHEN m.id IS NOT NULL THEN 'ok' WHEN j.cancel_requested THEN 'cancelled' ELSE 'lost' END
                         ORDER BY a.n), '[]')::text
FROM asked a LEFT JOIN marked m ON m.id = a.id AND m.token = a.token
LEFT JOIN holdfast.jobs j ON j.id = a.id AND j.token = a.token AND j.state = 'running'
