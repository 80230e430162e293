"""How statements find their rows: by the right index, in its order. A store without rules asks for them once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import claim, enqueue, limits, renew
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.codec import SQL
from holdfast.backends.sqlite.connection import Transaction, connect
from holdfast.lifecycle import Ending, Settlement
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, NewJob, TaskRule, WorkerRecord

NOW = 2_000_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = str(tmp_path / "jobs.db")
    asyncio.run(SqliteBackend(path).migrate())
    connection = connect(path)
    connection.execute("BEGIN")
    yield connection
    connection.close()


def transaction(store: sqlite3.Connection) -> Transaction:
    return Transaction(store.cursor(), NOW, NOW, "")


def plan(store: sqlite3.Connection, name: str) -> str:
    statement = SQL[name]
    values: Any = {"queue": "q", "grp": "g", "limit": 1, "now": 1.0, "task": "t", "excess": 1, "remembered": 1.0}
    if ":" not in statement.replace("::", ""):
        values = [1] * statement.count("?") if "?1" not in statement else [1]
    rows = store.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    return "\n".join(str(row[3]) for row in rows)


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("claim.lane", "holdfast_jobs_ready"),
        ("claim.lane_apart", "holdfast_jobs_apart"),
        ("claim.apart_ready", "holdfast_jobs_apart"),
        ("refill.waiting", "holdfast_jobs_waiting"),
        ("prune.finished", "holdfast_jobs_counted"),
    ],
)
def test_jobs_come_in_the_order_of_an_index(store: sqlite3.Connection, statement: str, index: str) -> None:
    """Sorting would look at every job that waits: the cost of a claim would grow with the backlog."""
    found = plan(store, statement)
    assert index in found
    assert "TEMP B-TREE FOR ORDER BY" not in found
    assert "SCAN holdfast_jobs\n" not in found + "\n"


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("refill.in_play", "holdfast_jobs_in_play"),
        ("claim.running_counted", "holdfast_jobs_counted"),
        ("prune.count_finished", "holdfast_jobs_counted"),
    ],
)
def test_what_is_counted_is_counted_in_an_index_alone(store: sqlite3.Connection, statement: str, index: str) -> None:
    assert f"USING COVERING INDEX {index}" in plan(store, statement)


def _exchange(store: sqlite3.Connection, call: int, settlements: list[Settlement]) -> list[Settlement]:
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
    leases = claim.exchange(transaction(store), settlements, (), request).leases
    return [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED) for lease in leases]


def test_without_rules_an_exchange_asks_for_them_once(store: sqlite3.Connection) -> None:
    enqueue.enqueue(transaction(store), [NewJob(id=f"j{n}", task="t") for n in range(40)])
    renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
    settlements = _exchange(store, 1, [])
    said: list[str] = []
    store.set_trace_callback(said.append)
    _exchange(store, 2, settlements)
    store.set_trace_callback(None)
    about_rules = ("holdfast_tasks", "holdfast_overrides", "holdfast_flows", "holdfast_queues", "holdfast_jobs_key")
    asked = [statement for statement in said if any(name in statement for name in about_rules)]
    assert len(asked) == 1, asked
    assert not [statement for statement in said if "counted" in statement or "holds_key" in statement.split("FROM")[0]]


def test_a_job_that_leaves_its_lane_apart_leaves_its_index(store: sqlite3.Connection) -> None:
    limits.declare(transaction(store), [], [TaskRule(name="t", rate=Rate(2, 1.0, 2))], 100)
    enqueue.enqueue(transaction(store), [NewJob(id=f"j{n}", task="t") for n in range(5)])
    renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
    assert len(claim.claim(transaction(store), ClaimRequest(worker="w", call=1, queues=("default",), most=9))) == 2
    cursor = store.cursor()
    assert cursor.execute("SELECT count(*) FROM holdfast_jobs WHERE lane = 3").fetchone() == (3,)
    assert cursor.execute("SELECT DISTINCT state FROM holdfast_jobs WHERE lane = 3").fetchall() == [("ready",)]
