"""The floor on SQLite: one file, WAL, synchronous=FULL, no framework. One transaction deletes the last batch's rows
and leases the next, BARE_BATCH at a time; each job's arguments are decoded. No groups, no retries, no fence. Large
arguments have a table of their own: a lease would write them again otherwise.
"""

from __future__ import annotations

import os
import sqlite3
import time

import apart
import tally

BATCH = int(os.environ.get("BARE_BATCH", "100"))
ARGUMENTS = tally.ARGUMENTS
LARGE = len(ARGUMENTS) > 2048
INSERT = "INSERT INTO jobs (arguments) VALUES (?)"
INSERT_LARGE = "INSERT INTO large (id, arguments) VALUES (last_insert_rowid(), ?)"
CLAIM = f"""
UPDATE jobs SET state = 1, deadline = ? WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING id, {"(SELECT l.arguments FROM large l WHERE l.id = jobs.id)" if LARGE else "arguments"}
"""  # noqa: S608 - ours


def opened() -> sqlite3.Connection:
    connection = sqlite3.connect(tally.URL, isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = full")
    return connection


def prepare() -> None:
    opened().executescript("""
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0, deadline REAL, arguments TEXT);
        CREATE INDEX ready ON jobs (id) WHERE state = 0;
        CREATE TABLE large (id INTEGER PRIMARY KEY, arguments TEXT);
    """)


def insert(connection: sqlite3.Connection, number: int) -> None:
    if not LARGE:
        connection.executemany(INSERT, [(ARGUMENTS,)] * number)
        return
    for _ in range(number):
        connection.execute(INSERT, (None,))
        connection.execute(INSERT_LARGE, (ARGUMENTS,))


def one(jobs: int) -> None:
    connection = opened()
    tally.timed(jobs, lambda: [insert(connection, 1) for _ in range(jobs)])


def bulk(jobs: int, shape: str = "none") -> None:
    connection = opened()

    def enqueue() -> None:
        for chunk in tally.chunks(jobs):
            connection.execute("BEGIN IMMEDIATE")
            insert(connection, len(chunk))
            connection.execute("COMMIT")

    tally.timed(jobs, enqueue)


def work() -> None:
    connection, handle = opened(), apart.Handler()
    held: list[tuple[int]] = []
    while True:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM jobs WHERE id = ?", held)
        if LARGE:
            connection.executemany("DELETE FROM large WHERE id = ?", held)
        rows = connection.execute(CLAIM, (time.time() + 30, BATCH)).fetchall()
        connection.execute("COMMIT")
        if not rows:
            return handle.close()
        for _, arguments in rows:
            handle(arguments)
        held = [(id,) for id, _ in rows]


if __name__ == "__main__":
    tally.main(prepare=prepare, one=one, bulk=bulk, work=work)
