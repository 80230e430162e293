-- Version 12: the growing counter is a row of sqlite_sequence, beside that of the jobs' seqs. An enqueue writes both, so it
-- writes one page less. The row belongs to no table: SQLite keeps it, also through VACUUM.

INSERT INTO sqlite_sequence (name, seq) SELECT 'holdfast_ticks', COALESCE(max(tick), 0) FROM holdfast_ticks;
DROP TABLE holdfast_ticks;
