"""Commands to one worker, through the store: carried out once, answered, and gone with the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import BackendUnavailable, ConfigurationError, JobNotFound, WorkerSilent
from holdfast.events import WorkerPaused, WorkerResumed
from holdfast.records import Command, WorkerRecord
from holdfast.worker_status import read

LEASE: dict[str, Any] = {"lease": 3.0, "renew_every": 0.25, "call_timeout": 0.25}


@asynccontextmanager
async def running(app: Holdfast, slots: int = 4) -> AsyncIterator[str]:
    """A worker of this app; its id."""
    async with app.worker(["default"], slots=slots, **LEASE):
        [worker] = await app.aworkers()
        yield worker.id


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until it is so, for 20 s at most."""
    async with asyncio.timeout(20):
        while not await look():
            pass


async def shows_paused(app: Holdfast) -> bool:
    [worker] = await app.aworkers()
    status = read(worker.portrait)
    return status is not None and status.paused


async def shows_slots(app: Holdfast, slots: int) -> bool:
    return [worker.slots for worker in await app.aworkers()] == [slots]


async def runs(app: Holdfast, number: int) -> bool:
    return (await app.acounts())["default"]["running"] == number


async def is_there(app: Holdfast) -> bool:
    return bool(await app.aworkers())


def make() -> tuple[Holdfast, list[str]]:
    app, ran = Holdfast("memory://"), []

    @app.task(name="note")
    async def note(word: str) -> None:
        ran.append(word)

    return app, ran


def test_a_paused_worker_claims_nothing_until_it_is_resumed() -> None:
    app, ran = make()
    seen: list[str] = []
    app.on("worker_paused")(lambda event: seen.append(f"paused by {event.by}" if type(event) is WorkerPaused else ""))
    app.on("worker_resumed")(lambda event: seen.append("resumed" if type(event) is WorkerResumed else ""))

    async def walk() -> None:
        async with running(app) as worker:
            assert await app.apause_worker(worker, by="ann") == "paused: 0 running"
            job = await app.tasks["note"].aenqueue("later")
            await until(lambda: shows_paused(app))
            assert (await app.ajob(job.id)).state == "ready"
            assert await app.aresume_worker(worker) == "resumed"
            await job.aresult(timeout=20)

    asyncio.run(walk())
    assert ran == ["later"]
    assert seen == ["paused by ann", "resumed"]


def test_slots_are_changed_within_what_the_worker_was_started_with() -> None:
    app, _ = make()
    begun, may_end = asyncio.Event(), asyncio.Event()
    running_now = 0

    @app.task(name="hold")
    async def hold() -> None:
        nonlocal running_now
        running_now += 1
        if running_now >= 2:
            begun.set()
        await may_end.wait()

    async def walk() -> None:
        async with running(app) as worker:
            assert await app.aset_worker_slots(worker, 2) == "2 slots"
            await until(lambda: shows_slots(app, 2))
            for _ in range(4):
                await hold.aenqueue()
            await asyncio.wait_for(begun.wait(), 20)
            assert (await app.acounts())["default"]["running"] == 2
            with pytest.raises(ConfigurationError, match="started with 4 slots"):
                await app.aset_worker_slots(worker, 9)
            assert await app.aset_worker_slots(worker, 4) == "4 slots"
            await until(lambda: runs(app, 4))
            may_end.set()

    asyncio.run(walk())


def test_stacks_show_where_handlers_are() -> None:
    app, _ = make()

    @app.task(name="stuck")
    def stuck(seconds: float) -> None:
        may_go.wait(seconds)

    may_go, found = threading.Event(), ""

    async def walk() -> None:
        nonlocal found
        async with running(app) as worker:
            await stuck.aenqueue(30.0)
            async with asyncio.timeout(20):
                while "may_go.wait" not in found:
                    found = await app.aworker_stacks(worker)
            may_go.set()

    asyncio.run(walk())
    assert "in stuck" in found


def test_a_worker_is_stopped_from_elsewhere() -> None:
    app, _ = make()

    async def walk() -> None:
        worker = app.worker(["default"], slots=2, **LEASE)
        run = asyncio.ensure_future(worker.run(signals=False))
        await until(lambda: is_there(app))
        [found] = await app.aworkers()
        assert (await app.astop_worker(found.id)).startswith("stop")
        await asyncio.wait_for(run, 20)
        assert await app.aworkers() == []

    asyncio.run(walk())


def test_a_command_is_carried_out_once_though_its_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = make()
    seen: list[str] = []
    app.on("worker_paused")(lambda event: seen.append("paused"))

    async def walk() -> None:
        backend = app._backend
        real, calls = backend.answer, 0

        async def forgetful(*args: Any, **kwargs: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise BackendUnavailable("lost")
            return await real(*args, **kwargs)

        monkeypatch.setattr(backend, "answer", forgetful)
        async with running(app) as worker:
            assert await app.apause_worker(worker) == "paused: 0 running"
        assert calls == 3

    asyncio.run(walk())
    assert seen == ["paused"]


def test_nobody_answers_for_a_worker_that_is_not_there_or_does_not_renew() -> None:
    app, _ = make()
    with pytest.raises(JobNotFound, match="worker"):
        app.pause_worker("nobody")

    async def register() -> None:
        await app._ado(lambda backend: backend.register(WorkerRecord(id="w1")))

    asyncio.run(register())
    with pytest.raises(WorkerSilent, match="next renewal"):
        app.pause_worker("w1", timeout=0.01)
    [command] = app._do("commands", lambda backend: backend.commands("w1"))
    assert (command.ask, command.done_at) == ("pause", None)
    assert isinstance(command, Command)
