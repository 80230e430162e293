-- Version 2: a store can be sealed while its jobs are moved to another one, and afterwards.
-- At most one row: this store's side in its latest move. `closed` says again what the record means, for the verbs.

CREATE TABLE holdfast_seal (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    closed INTEGER NOT NULL CHECK (closed IN (0, 1)),
    record TEXT    NOT NULL                              -- JSON of records.Seal
) STRICT;
