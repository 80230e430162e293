-- Version 7: dead and cancelled jobs are listed without reading the others. A job that succeeds is never in this index.

CREATE INDEX jobs_rare ON holdfast.jobs (state, seq) WHERE state IN ('dead', 'cancelled');
