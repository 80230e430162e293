"""What looks and sweeps cost: what they show and do, not what else there is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.backends.sqlite import operate, read_rules
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import connect
from holdfast.backends.sqlite.transaction import Transaction
from holdfast.lifecycle import State
from holdfast.records import NewJob

from .costs import fill, steps, transaction

LOOKS: dict[str, Callable[[Transaction], object]] = {
    "the first groups": lambda tx: read_rules.groups(tx.cursor, None, 20),
    "the first groups of a queue": lambda tx: read_rules.groups(tx.cursor, "default", 20),
    "one group": lambda tx: read_rules.group(tx.cursor, "default", "g000001"),
    "whether a group wakes": lambda tx: read_rules.waking(tx.cursor, ["default"]),
    "a refill of the first groups": lambda tx: operate.refill(tx, ("", ""), 20),
    "a refill from the middle": lambda tx: operate.refill(tx, ("default", "g000100"), 20),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], sqlite3.Connection]]:
    opened: list[sqlite3.Connection] = []

    def store(size: int) -> sqlite3.Connection:
        """Groups of three (ready, waiting, scheduled), and one at the end with as many waiting jobs as all of them."""
        path = str(tmp_path / f"{size}.db")
        asyncio.run(SqliteBackend(path).migrate())
        connection = connect(path)
        opened.append(connection)
        connection.execute("BEGIN")
        states = ("ready", "waiting", "scheduled")
        grouped = [(NewJob(id=f"b{n}", task="work", group=f"g{n // 3:06}"), states[n % 3]) for n in range(size)]
        fill(connection, grouped)
        fill(connection, [(NewJob(id=f"c{n}", task="work", group="huge"), "waiting") for n in range(size)])
        fill(connection, [(NewJob(id=f"a{n}", task="work"), "ready") for n in range(size)])
        return connection

    yield store
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("what", LOOKS)
def test_a_look_costs_the_same_beside_ten_times_as_many_jobs(
    make: Callable[[int], sqlite3.Connection], what: str
) -> None:
    small, big = (steps(make(size), LOOKS[what]) for size in (600, 6_000))
    assert big < 1.3 * small + 100


def test_a_refill_goes_over_a_group_of_any_size_in_one_step(make: Callable[[int], sqlite3.Connection]) -> None:
    costs = [steps(make(size), lambda tx: operate.refill(tx, ("default", "h"), 20)) for size in (600, 6_000)]
    assert costs[1] < 1.3 * costs[0] + 100


def test_groups_are_listed_once_each_in_order(make: Callable[[int], sqlite3.Connection]) -> None:
    cursor = transaction(make(600)).cursor
    names = [group.name for group in read_rules.groups(cursor, None, 1000)]
    assert names == [*(f"g{n:06}" for n in range(200)), "huge"]
    first = read_rules.groups(cursor, "default", 1)[0]
    assert (first.counts, first.head) == ({"waiting": 1, "scheduled": 1, "ready": 1}, "b0")


def test_one_step_lets_a_bounded_number_of_due_jobs_of_a_group_join(tmp_path: Path) -> None:
    async def joined() -> int:
        store, now = SqliteBackend(str(tmp_path / "jobs.db")), 2_000_000_000.0
        await store.open()
        try:
            jobs = [NewJob(id=f"j{n:05}", task="work", group="g", delay=1.0) for n in range(2_500)]
            await store.enqueue(jobs, now=now)
            await store.promote(limit=5, now=now + 2.0)
            found = (await store.count())["default"]
            return found.get(State.WAITING, 0) + found.get(State.READY, 0)
        finally:
            await store.close()

    assert 5 <= asyncio.run(joined()) <= 2_005
