-- export: pieces of the store in a stable order, as JSON in the shapes of the records. Never writes.
-- Takes the place to go on after and a bound.

-- :: jobs
SELECT holdfast.job_record(j)::text, (
    SELECT coalesce(json_agg(json_build_object('at', l.at, 'text', l.text) ORDER BY l.line), '[]')
    FROM holdfast.logs l WHERE l.job_seq = j.seq)::text
FROM (SELECT * FROM holdfast.jobs WHERE seq > %(after)s::bigint ORDER BY seq LIMIT %(limit)s) j ORDER BY j.seq

-- :: letters
SELECT holdfast.letter_record(l)::text
FROM (SELECT * FROM holdfast.letters WHERE job_id > %(after)s ORDER BY job_id LIMIT %(limit)s) l ORDER BY l.job_id

-- :: tick
SELECT last_value FROM holdfast.ticks
