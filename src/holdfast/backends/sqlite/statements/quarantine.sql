-- quarantine: rows that cannot be read, out of everybody's way.

-- :: keep
INSERT INTO holdfast_quarantine (place, name, fields, at, record) VALUES (?, ?, ?, ?, ?)

-- :: all
SELECT place, name, fields FROM holdfast_quarantine ORDER BY id LIMIT ?
