-- Version 11: a queue can name another one that gets a copy of every job that dies in it.

ALTER TABLE holdfast_queues ADD COLUMN dead_queue TEXT CHECK (dead_queue <> name);
