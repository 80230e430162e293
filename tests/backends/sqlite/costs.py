"""What a piece of work costs SQLite, in steps of its virtual machine: the same on every machine and under any load."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from holdfast.backends.sqlite.connection import Transaction
from holdfast.records import NewJob

NOW = 2_000_000_000.0
INSERT = """
INSERT INTO holdfast_jobs (id, task, queue, state, priority, grp, lane, turn, max_stalls, created_at, due_at, args)
VALUES (?, ?, ?, ?, 0, ?, ?, ?, 3, ?, ?, x'5b5d')
"""


def transaction(store: sqlite3.Connection) -> Transaction:
    return Transaction(store.cursor(), NOW, NOW, "")


def steps(store: sqlite3.Connection, work: Callable[[Transaction], object]) -> int:
    """How many steps a piece of work takes, to the nearest ten."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 10
        return 0

    store.execute("SAVEPOINT before")
    store.set_progress_handler(count, 10)
    try:
        work(transaction(store))
    finally:
        store.set_progress_handler(None, 10)
        store.execute("ROLLBACK TO before")
    return taken


def fill(store: sqlite3.Connection, jobs: list[tuple[NewJob, str]]) -> None:
    """Rows as the verbs would leave them, without their cost: each with its state."""
    lanes: dict[str | None, int] = {None: 0}
    rows = [
        (job.id, job.task, job.queue, state, job.group, lanes.get(job.group, 1), int(NOW) * 1_000_000 + n, NOW, NOW)
        for n, (job, state) in enumerate(jobs)
    ]
    store.executemany(INSERT, rows)
