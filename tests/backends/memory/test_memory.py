"""The store in memory: databases that are used again, calls from anywhere, waits, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.backends.sqlite import enqueue, memory
from holdfast.backends.sqlite.connection import Transaction
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import ManualClock
from holdfast.errors import BackendUnavailable
from holdfast.records import ClaimRequest, Enqueued, JobQuery, NewJob, Pause, QueueRule, WorkerRecord

WAIT_SECONDS_MAX = 60.0


@pytest.fixture(autouse=True)
def no_other_store() -> Iterator[None]:
    """What earlier tests let go is put back now, and nothing is idle."""
    gc.collect()
    memory._idle.clear()
    yield
    gc.collect()


def rows(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def job(job_id: str, **fields: object) -> NewJob:
    return NewJob(id=job_id, task="t", **fields)  # type: ignore[arg-type]


def stored(backend: MemoryBackend) -> list[str]:
    return [found.id for found in asyncio.run(backend.find(JobQuery()))]


async def use(backend: MemoryBackend) -> None:
    await backend.declare([QueueRule(name="default", group_limit=2, group_order="relaxed")])
    await backend.enqueue([job("a", key="k"), job("b", group="g"), job("c", delay=60.0)])
    await backend.pause(Pause(task="other"))
    await backend.register(WorkerRecord(id="w", lease_seconds=60.0))
    await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=10))
    await backend.bury("c", "failed")


# ---------------------------------------------------------------------- databases


def test_a_store_leaves_nothing_to_the_next_one_on_its_database() -> None:
    first = MemoryBackend()
    asyncio.run(use(first))
    database = first._database
    assert database is not None
    assert rows(database) != rows(memory._image())
    del first
    gc.collect()
    second = MemoryBackend()
    asyncio.run(second.open())
    assert second._database is database
    assert rows(database) == rows(memory._image())


def test_a_store_lives_on_after_it_was_closed() -> None:
    backend = MemoryBackend()
    backend.enqueue_here([job("a")])
    asyncio.run(backend.close())
    assert stored(backend) == ["a"]


def test_two_stores_share_nothing() -> None:
    one, two = MemoryBackend(), MemoryBackend()
    one.enqueue_here([job("a")])
    assert (stored(one), stored(two)) == (["a"], [])


def test_a_database_that_has_grown_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "IDLE_PAGES_MAX", 1)
    backend = MemoryBackend()
    backend.enqueue_here([job("a")])
    del backend
    gc.collect()
    assert memory._idle == []


def test_only_a_few_databases_are_kept() -> None:
    backends = [MemoryBackend() for _ in range(memory.IDLE_MAX + 3)]
    for backend in backends:
        backend.enqueue_here([job("a")])
    del backends, backend
    gc.collect()
    assert len(memory._idle) == memory.IDLE_MAX


def test_the_migrations_run_once_for_all_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(MemoryBackend().open())
    monkeypatch.setattr("holdfast.backends.sqlite.schema.migrations", lambda: pytest.fail("migrated again"))
    memory._idle.clear()
    asyncio.run(MemoryBackend().open())


# ---------------------------------------------------------------------- critical sections


def interrupted_once(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """The next enqueue does its work, and then this before its end."""
    real = enqueue.enqueue

    def interrupted(tx: Transaction, jobs: list[NewJob]) -> list[Enqueued]:
        monkeypatch.setattr(enqueue, "enqueue", real)
        made = real(tx, jobs)
        what()
        return made

    monkeypatch.setattr(enqueue, "enqueue", interrupted)


def test_an_interrupt_undoes_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    backend = MemoryBackend()
    interrupted_once(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        backend.enqueue_here([job("a")])
    backend.enqueue_here([job("b")])
    assert stored(backend) == ["b"]


def test_a_call_from_inside_another_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, refused = MemoryBackend(), []

    def call_again() -> None:  # as a signal handler would
        with pytest.raises(BackendUnavailable) as met:
            backend.enqueue_here([job("b")])
        refused.append(met.value)

    interrupted_once(monkeypatch, call_again)
    backend.enqueue_here([job("a")])
    assert len(refused) == 1
    assert stored(backend) == ["a"]


def test_threads_write_one_after_the_other() -> None:
    backend = MemoryBackend()

    def write(name: str) -> None:
        for number in range(50):
            backend.enqueue_here([job(f"{name}{number}")])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    assert sum(sum(states.values()) for states in asyncio.run(backend.count()).values()) == 200


# ---------------------------------------------------------------------- waiting


async def waits(backend: MemoryBackend, queue: str, seconds: float = WAIT_SECONDS_MAX) -> asyncio.Task[bool]:
    task = asyncio.create_task(backend.wait_for_work([queue], seconds))
    await asyncio.sleep(0)
    return task


def test_a_wait_ends_with_work_of_its_queue_and_not_with_other_calls() -> None:
    async def scene() -> None:
        backend = MemoryBackend()
        await backend.register(WorkerRecord(id="w", lease_seconds=60.0))
        waiting = await waits(backend, "mail")
        await backend.enqueue([job("a")])
        await backend.claim(ClaimRequest(worker="w", call=1, queues=("mail",), most=1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(backend.enqueue_here, [job("b", queue="mail")])
        await asyncio.wait_for(waiting, WAIT_SECONDS_MAX)
        assert backend._waiting == {}

    asyncio.run(scene())


def test_a_wait_ends_when_a_delayed_job_is_due_by_the_clock_it_was_given() -> None:
    async def scene() -> None:
        clock = ManualClock(2_000_000_000.0)
        backend = MemoryBackend(clock)
        await backend.enqueue([job("a", delay=3600.0)])
        waiting = await waits(backend, "default")
        clock.advance(3600.0)
        await backend.enqueue([job("b", queue="other")])  # any write lets it look again
        await asyncio.wait_for(waiting, WAIT_SECONDS_MAX)

    asyncio.run(scene())


def test_a_wait_that_is_given_up_is_forgotten() -> None:
    async def scene() -> None:
        backend = MemoryBackend()
        waiting = await waits(backend, "default")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert backend._waiting == {}
        await backend.wait_for_work(["default"], 0.0)

    asyncio.run(scene())


# ---------------------------------------------------------------------- forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_copy_of_its_own() -> None:
    backend = MemoryBackend()
    backend.enqueue_here([job("a")])
    child = os.fork()
    if not child:
        backend.enqueue_here([job("b")])
        other = MemoryBackend()
        other.enqueue_here([job("c")])
        os._exit(0 if (sorted(stored(backend)), stored(other)) == (["a", "b"], ["c"]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stored(backend) == ["a"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_waits_for_another_threads_write(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, inside, go_on = MemoryBackend(), threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        go_on.wait(WAIT_SECONDS_MAX)

    interrupted_once(monkeypatch, stay)
    writer = threading.Thread(target=backend.enqueue_here, args=([job("a")],))
    writer.start()
    assert inside.wait(WAIT_SECONDS_MAX)
    threading.Timer(0.05, go_on.set).start()
    child = os.fork()
    if not child:
        os._exit(0 if stored(backend) == ["a"] else 1)
    writer.join(WAIT_SECONDS_MAX)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
