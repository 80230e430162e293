-- Version 4: a worker shows its runners. Apart from its row, which every claim writes: a portrait would be written again.

CREATE TABLE holdfast_portraits (
    worker   TEXT PRIMARY KEY,
    portrait BLOB NOT NULL                               -- JSON of portrait.Portrait
) STRICT;

CREATE TRIGGER holdfast_portraits_go AFTER DELETE ON holdfast_workers
BEGIN
    DELETE FROM holdfast_portraits WHERE worker = old.id;
END;
