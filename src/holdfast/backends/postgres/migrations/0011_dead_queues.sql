-- Version 11: a queue can name another one that gets a copy of every job that dies in it.

ALTER TABLE holdfast.queues ADD COLUMN dead_queue text CHECK (dead_queue <> name);
