"""Reads and sweeps cost what they show and do, whatever else the store holds."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.backends.sqlite import groups, read
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.codec import SQL
from holdfast.backends.sqlite.connection import Transaction, connect
from holdfast.backends.sqlite.scan import scan
from holdfast.lifecycle import State
from holdfast.queries.pages import Look
from holdfast.records import GROUP_COUNT_MAX, JobQuery, JobRecord, NewJob

from .costs import fill, steps, transaction


def find(cursor: sqlite3.Cursor, query: JobQuery) -> list[JobRecord]:
    return list(scan(cursor, query, Look()).jobs)


LOOKS: dict[str, Callable[[Transaction], object]] = {
    "the first groups": lambda tx: read.groups(tx.cursor, None, 20),
    "the first groups of a queue": lambda tx: read.groups(tx.cursor, "default", 20),
    "one group": lambda tx: read.group(tx.cursor, "default", "g000001"),
    "one group that has most jobs": lambda tx: read.group(tx.cursor, "default", "huge"),
    "a group whose jobs are all scheduled": lambda tx: read.group(tx.cursor, "later", "huge"),
    "the groups of a queue beside ungrouped scheduled jobs": lambda tx: read.groups(tx.cursor, "later", 20),
    "all groups of a few queues": lambda tx: read.groups(tx.cursor, None, 20),
    "the oldest jobs by task": lambda tx: find(tx.cursor, JobQuery(task="rare", limit=20)),
    "jobs of a task nobody has": lambda tx: find(tx.cursor, JobQuery(task="none", limit=20)),
    "the oldest jobs by queue": lambda tx: find(tx.cursor, JobQuery(queue="small", limit=20)),
    "the newest jobs by queue": lambda tx: find(tx.cursor, JobQuery(queue="default", limit=20)),
    "the oldest jobs by queue and task": lambda tx: find(tx.cursor, JobQuery(queue="small", task="rare")),
    "cancelled jobs": lambda tx: find(tx.cursor, JobQuery(states=(State.CANCELLED, State.DEAD), limit=20)),
    "cancelled jobs of a task": lambda tx: find(tx.cursor, JobQuery(states=(State.CANCELLED,), task="rare")),
    "running jobs": lambda tx: find(tx.cursor, JobQuery(states=(State.RUNNING,))),
    "running jobs of a task": lambda tx: find(tx.cursor, JobQuery(states=(State.RUNNING,), task="work")),
    "jobs of a worker": lambda tx: find(tx.cursor, JobQuery(worker="w")),
    "a job by the beginning of its id": lambda tx: find(tx.cursor, JobQuery(id_prefix="first")),
    "counts of a small queue": lambda tx: read.count(tx.cursor, "small"),
    "whether a group wakes": lambda tx: read.waking(tx.cursor, ["default"]),
    "a refill of the first groups": lambda tx: groups.refill_pass(tx, ("", ""), 20),
    "a refill from the middle": lambda tx: groups.refill_pass(tx, ("default", "g000100"), 20),
}


SIZES = (1_200, 12_000)  # the smaller one has more than a group counts


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], sqlite3.Connection]]:
    opened: list[sqlite3.Connection] = []
    folder = tmp_path_factory.mktemp("looks")

    @functools.cache
    def store(size: int) -> sqlite3.Connection:
        """Groups of three (ready, waiting, scheduled), and one at the end with as many waiting jobs as all of them."""
        path = str(folder / f"{size}.db")
        asyncio.run(SqliteBackend(path).migrate())
        connection = connect(path)
        opened.append(connection)
        connection.execute("BEGIN")
        small = [NewJob(id=f"first{n}", task="rare", queue="small") for n in range(20)]
        fill(connection, [(job, ("ready", "scheduled")[n % 2]) for n, job in enumerate(small)])
        connection.execute("UPDATE holdfast_jobs SET state = 'cancelled', finished_at = 1.0 WHERE id = 'first1'")
        states = ("ready", "waiting", "scheduled")
        grouped = [(NewJob(id=f"b{n}", task="work", group=f"g{n // 3:06}"), states[n % 3]) for n in range(size)]
        fill(connection, grouped)
        fill(connection, [(NewJob(id=f"c{n}", task="work", group="huge"), "waiting") for n in range(size)])
        fill(connection, [(NewJob(id=f"a{n}", task="work"), "ready") for n in range(size)])
        fill(connection, [(NewJob(id=f"d{n}", task="work", queue="later"), "scheduled") for n in range(size)])
        later = [NewJob(id=f"e{n}", task="work", queue="later", group="huge") for n in range(size)]
        fill(connection, [(job, "scheduled") for job in later])
        return connection

    yield store
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("what", LOOKS)
def test_a_look_costs_the_same_beside_ten_times_as_many_jobs(
    make: Callable[[int], sqlite3.Connection], what: str
) -> None:
    small, big = (steps(make(size), LOOKS[what]) for size in SIZES)
    assert big < 1.3 * small + 100


def test_a_refill_goes_over_a_group_of_any_size_in_one_step(make: Callable[[int], sqlite3.Connection]) -> None:
    costs = [steps(make(size), lambda tx: groups.refill_pass(tx, ("default", "h"), 20)) for size in SIZES]
    assert costs[1] < 1.3 * costs[0] + 100


def test_groups_are_listed_once_each_in_order(make: Callable[[int], sqlite3.Connection]) -> None:
    cursor = transaction(make(600)).cursor
    names = [(group.queue, group.name) for group in read.groups(cursor, None, 1000)]
    assert names == [*(("default", f"g{n:06}") for n in range(200)), ("default", "huge"), ("later", "huge")]
    first = read.groups(cursor, "default", 1)[0]
    assert (first.counts, first.head) == ({"waiting": 1, "scheduled": 1, "ready": 1}, "b0")


def test_a_group_says_of_which_states_it_has_more_than_it_counted(make: Callable[[int], sqlite3.Connection]) -> None:
    for size in (GROUP_COUNT_MAX, GROUP_COUNT_MAX + 1):
        huge = read.group(transaction(make(size)).cursor, "default", "huge")
        assert huge.counts == {"waiting": GROUP_COUNT_MAX}
        assert huge.capped == (() if size == GROUP_COUNT_MAX else ("waiting",))
        assert huge.number("waiting") == (f"{GROUP_COUNT_MAX}" if size == GROUP_COUNT_MAX else f"{GROUP_COUNT_MAX}+")


def test_jobs_of_several_queues_and_tasks_are_merged_newest_first(make: Callable[[int], sqlite3.Connection]) -> None:
    cursor = transaction(make(30)).cursor
    everything = find(cursor, JobQuery(limit=10_000))
    for query in (
        JobQuery(task="work"),
        JobQuery(queue="small"),
        JobQuery(task="work", states=(State.SCHEDULED,), before=100),
        JobQuery(queue="later", group="huge"),
        JobQuery(task="rare", states=(State.CANCELLED, State.DEAD)),
        JobQuery(states=(State.CANCELLED, State.READY)),
    ):
        wanted = [
            job.id
            for job in everything
            if query.task in (None, job.task)
            and query.queue in (None, job.queue)
            and query.group in (None, job.group)
            and (not query.states or job.state in query.states)
            and (query.before is None or job.seq < query.before)
        ]
        assert wanted
        assert [job.id for job in find(cursor, query)] == wanted[:50]
    counts = read.count(cursor, None)
    assert counts == {
        "default": {State.READY: 40, State.WAITING: 40, State.SCHEDULED: 10},
        "later": {State.SCHEDULED: 60},
        "small": {State.READY: 10, State.SCHEDULED: 9, State.CANCELLED: 1},
    }


def test_counting_reads_no_jobs_but_ready_ones(make: Callable[[int], sqlite3.Connection]) -> None:
    store = make(30)
    for name in ("read.count", "read.next_queue", "read.next_task"):
        found = store.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", ["q"] * SQL[name].count("?") or {"queue": "q"})
        jobs = [row[3] for row in found if "holdfast_jobs" in row[3]]
        assert jobs and all("COVERING INDEX" in one or "holdfast_jobs_ready (queue=?)" in one for one in jobs), jobs


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
