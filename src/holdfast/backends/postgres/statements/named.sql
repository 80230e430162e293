-- named: the jobs that a call names by their leases: which they are, their groups, and which of them a stranger holds.
-- Safe against a rival: nothing is decided here. Who ends a lease compares its token again, with the groups locked.

-- :: function_held_elsewhere
-- The tokens among these whose jobs a stranger's session has locked, an operator's at a prompt say. They are answered
-- `busy`, and the others go on. Looked for only after an exchange failed for it: the look costs a lock per job.
CREATE OR REPLACE FUNCTION holdfast.held_elsewhere(named bigint[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (WITH ours AS MATERIALIZED (
        SELECT j.seq, j.token FROM unnest(named) n(seq) JOIN holdfast.jobs j ON j.seq = n.seq WHERE j.state = 'running'
    ), free AS MATERIALIZED (
        SELECT j.seq FROM holdfast.jobs j JOIN ours ON j.seq = ours.seq ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED)
    SELECT coalesce(array_agg(token), '{}') FROM ours WHERE seq NOT IN (SELECT seq FROM free));
END $$

-- :: function_seq_named
-- A token of ours begins with the seq of its job: it is found although its row in ids may be missing.
CREATE OR REPLACE FUNCTION holdfast.seq_named(named text, its_token text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN its_token ~ '^[0-9]{1,18}[.]' THEN split_part(its_token, '.', 1)::bigint
                ELSE (SELECT i.seq FROM holdfast.ids i WHERE i.id = named) END
$$

-- :: function_seqs_named
CREATE OR REPLACE FUNCTION holdfast.seqs_named(successes jsonb, others jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT split_part(t, '.', 1)::bigint FROM jsonb_array_elements_text(successes -> 'token') t)
        || ARRAY(SELECT n.seq FROM jsonb_array_elements(others) o
                 CROSS JOIN LATERAL holdfast.seq_named(o ->> 'id', o ->> 'token') n(seq) WHERE n.seq IS NOT NULL);
END $$

-- :: function_places_named
CREATE OR REPLACE FUNCTION holdfast.places_named(named bigint[]) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(ROW(g.queue, g.grp)::holdfast.place)
            FROM (SELECT DISTINCT j.queue, j.grp FROM unnest(named) n(seq) JOIN holdfast.jobs j ON j.seq = n.seq
                  WHERE j.grp IS NOT NULL AND j.state = 'running') g);
END $$

-- :: function_places_ended
CREATE OR REPLACE FUNCTION holdfast.places_ended(successes jsonb) RETURNS holdfast.place[] LANGUAGE plpgsql AS $$
BEGIN  -- the same of successes alone
    RETURN (SELECT array_agg(ROW(g.queue, g.grp)::holdfast.place)
            FROM (SELECT DISTINCT j.queue, j.grp FROM jsonb_array_elements_text(successes -> 'token') t(token)
                  JOIN holdfast.jobs j ON j.seq = split_part(t.token, '.', 1)::bigint
                  WHERE t.token LIKE '%g' AND CASE j.state WHEN 'running' THEN j.grp IS NOT NULL END) g);
END $$
