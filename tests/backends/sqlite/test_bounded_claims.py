"""What a claim reads: nothing that it will not hand out, however big the arguments of the jobs behind it are."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.sqlite import enqueue, renew
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.claim import _ARGS, _SIZE, exchange
from holdfast.backends.sqlite.codec import SQL
from holdfast.backends.sqlite.connection import Transaction, connect
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

NOW = 2_000_000_000.0
BIG = b'"' + b"x" * 9_998 + b'"'


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


def claim(store: sqlite3.Connection, call: int, bytes_max: int) -> list[tuple[str, bytes]]:
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=10, bytes_max=bytes_max)
    return [(lease.id, lease.args) for lease in exchange(transaction(store), (), (), request).leases]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_claim_reads_the_big_arguments_of_those_it_leases_alone(store: sqlite3.Connection, group: str | None) -> None:
    renew.register(transaction(store), WorkerRecord(id="w"))
    jobs = [NewJob(id=f"j{n}", task="t", args=BIG, group=group and f"{group}{n}") for n in range(6)]
    enqueue.enqueue(transaction(store), jobs)
    statements: list[str] = []
    store.set_trace_callback(statements.append)
    assert claim(store, 1, 25_000) == [("j0", BIG), ("j1", BIG)]
    assert claim(store, 1, 15_000) == [("j0", BIG)]  # a repeat that asks for less
    store.set_trace_callback(None)
    bodies = [text.rpartition("json_each(")[2] for text in statements if "FROM holdfast_bodies" in text]
    assert bodies == ["'[1,2]'))", "'[1]'))"]
    lane = store.execute(SQL["claim.lane"], ("default", int(group is not None), 10, 0)).fetchall()
    assert {(row[_ARGS], row[_SIZE]) for row in lane} == {(None, len(BIG))}


def test_small_arguments_cost_no_second_look(store: sqlite3.Connection) -> None:
    renew.register(transaction(store), WorkerRecord(id="w"))
    enqueue.enqueue(transaction(store), [NewJob(id=f"j{n}", task="t", args=b"[1]") for n in range(3)])
    statements: list[str] = []
    store.set_trace_callback(statements.append)
    assert claim(store, 1, 1000) == [("j0", b"[1]"), ("j1", b"[1]"), ("j2", b"[1]")]
    assert not [text for text in statements if "FROM holdfast_bodies" in text]
