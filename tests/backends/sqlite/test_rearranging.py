"""A changed rule costs the same on a big backlog as on a small one, and so do the claims that carry it on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.backends.sqlite import limits, renew
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.claim import exchange
from holdfast.backends.sqlite.connection import Transaction, connect
from holdfast.records import ClaimRequest, NewJob, Override, Pause, QueueRule, TaskRule, WorkerRecord

from .costs import fill, steps, transaction

STEP = 100
Change = Callable[[Transaction], object]

CHANGES: dict[str, Change] = {
    "pause of a task": lambda tx: limits.pause(tx, Pause(task="work"), STEP),
    "limit of a task": lambda tx: limits.limit(tx, Override(task="work", limit=1), STEP),
    "declared limit of a task": lambda tx: limits.declare(tx, [], [TaskRule(name="work", limit=1)], STEP),
    "declared retention": lambda tx: limits.declare(tx, [], [TaskRule(name="work", retain_count=5)], STEP),
    "group limit of a queue": lambda tx: limits.declare(
        tx, [QueueRule(name="default", group_limit=3, group_order="relaxed")], [], STEP
    ),
    "pause of a group": lambda tx: limits.pause(tx, Pause(queue="default", group="one"), STEP),
    "limit of a group": lambda tx: limits.limit(tx, Override(queue="default", group="one", limit=1), STEP),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], sqlite3.Connection]]:
    opened: list[sqlite3.Connection] = []

    def store(size: int) -> sqlite3.Connection:
        """So many jobs in each of three places: ready, in groups of two, waiting in one group."""
        path = str(tmp_path / f"{size}.db")
        asyncio.run(SqliteBackend(path).migrate())
        connection = connect(path)
        opened.append(connection)
        connection.execute("BEGIN")
        fill(connection, [(NewJob(id=f"a{n}", task="work" if n % 2 else "other"), "ready") for n in range(size)])
        grouped = [NewJob(id=f"b{n}", task="work", group=f"g{n // 2:06}") for n in range(size)]
        fill(connection, [(job, "waiting" if n % 2 else "ready") for n, job in enumerate(grouped)])
        fill(connection, [(NewJob(id=f"c{n}", task="work", group="one"), "waiting") for n in range(size)])
        return connection

    yield store
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_rule_costs_the_same_on_a_backlog_ten_times_as_big(
    make: Callable[[int], sqlite3.Connection], what: str
) -> None:
    small, big = (steps(make(size), CHANGES[what]) for size in (500, 5_000))
    assert big < 1.3 * small


def claim(tx: Transaction, call: int, *, most: int = 10, sweep_max: int = 100) -> list[str]:
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=most, sweep_max=sweep_max)
    return [lease.id for lease in exchange(tx, (), (), request).leases]


@pytest.mark.parametrize("what", [name for name in CHANGES if "of a group" not in name])
def test_a_claim_that_carries_it_on_costs_the_same_too(make: Callable[[int], sqlite3.Connection], what: str) -> None:
    costs: list[int] = []
    for size in (500, 5_000):
        store = make(size)
        renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
        CHANGES[what](transaction(store))
        assert transaction(store).rules.rearranging
        costs.append(steps(store, lambda tx: claim(tx, 1)))
    assert costs[1] < 1.3 * costs[0]


def test_a_step_that_was_cut_off_is_gone_on_with(make: Callable[[int], sqlite3.Connection]) -> None:
    store = make(500)
    CHANGES["pause of a task"](transaction(store))
    passes = 0
    while limits.rearrange(transaction(store), STEP):
        passes += 1
    assert passes >= 5
    left = "SELECT count(*) FROM holdfast_jobs WHERE state = 'ready' AND task = 'work' AND lane <> 2"
    assert store.execute(left).fetchone() == (0,)
    assert store.execute("SELECT count(*) FROM holdfast_jobs WHERE task = 'other' AND lane <> 0").fetchone() == (0,)
    assert not transaction(store).rules.rearranging


def test_retention_counts_all_finished_jobs_in_the_end(make: Callable[[int], sqlite3.Connection]) -> None:
    store = make(500)
    store.execute("UPDATE holdfast_jobs SET state = 'cancelled', finished_at = 1 WHERE state = 'ready'")
    CHANGES["declared retention"](transaction(store))
    while limits.rearrange(transaction(store), STEP):
        pass
    wrong = "SELECT count(*) FROM holdfast_jobs WHERE counted <> (task = 'work')"
    assert store.execute(wrong).fetchone() == (0,)


def test_a_store_with_nothing_to_rearrange_is_asked_nothing_more(make: Callable[[int], sqlite3.Connection]) -> None:
    store = make(500)
    renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
    said: list[str] = []
    store.set_trace_callback(said.append)
    assert claim(transaction(store), 1)
    asked = [text for text in said if "holdfast_rearranging" in text]
    assert [text.split()[0] for text in asked] == ["SELECT"], "one look, with all that every claim asks"
