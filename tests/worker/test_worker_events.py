"""Events: emitted once, to sync and async listeners, and harmless if a listener fails."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast import events
from holdfast.context import Context
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import State
from holdfast.retry import RetryPolicy

FACE = """enqueued started succeeded failed retrying stalled lease_lost renewal_failed fence_passed store_blocked dead
cancelled progress loop_blocked worker_started worker_stopped"""


def test_every_event_of_the_public_face_is_there() -> None:
    assert set(FACE.split()) <= set(events.EVENTS)
    assert all(kind.name == name for name, kind in events.EVENTS.items())


def test_an_unknown_event_names_its_neighbours() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean stalled"):
        events.Hub().on("staled")


def test_no_event_is_wanted_without_a_listener() -> None:
    hub = events.Hub()
    assert not hub.wanted("dead")
    hub.on("dead")(lambda event: None)
    assert hub.wanted("dead") and not hub.wanted("failed")


def test_a_failing_listener_is_logged_and_the_next_is_called(caplog: pytest.LogCaptureFixture) -> None:
    hub, seen = events.Hub(), []

    @hub.on("worker_started")
    def breaks(event: events.WorkerStarted) -> None:
        raise SystemExit(3)

    @hub.on("worker_started")
    async def later(event: events.WorkerStarted) -> None:
        seen.append(event.slots)
        raise RuntimeError

    hub.emit(events.WorkerStarted(slots=3))
    assert seen == [3], "without a running loop an async listener is run to its end"
    assert caplog.text.count("a callback of event 'worker_started' failed") == 2


async def test_the_events_of_a_jobs_life_are_emitted(app: WorkerApp) -> None:
    told: list[tuple[str, str, int]] = []
    for name in ("started", "succeeded", "failed", "retrying", "dead", "cancelled"):

        def note(event: events.JobEvent) -> None:
            told.append((event.name, event.task, event.attempt))

        app._hub.on(name)(note)

    @app._hub.on("worker_stopped")
    async def stopped(event: events.WorkerStopped) -> None:
        told.append((event.name, "", 0))

    @app.task(name="twice", retry=RetryPolicy.fixed(0, limit=1), group="g")
    async def twice() -> None:
        raise ValueError("secret text")

    @app.task(name="good", group="g")
    async def good() -> None:
        return None

    await app.put(twice.bind(), good.bind())
    await app.drain(slots=1)
    assert told == [
        ("started", "twice", 1),
        ("failed", "twice", 1),
        ("retrying", "twice", 1),
        ("started", "twice", 2),
        ("failed", "twice", 2),
        ("dead", "twice", 2),
        ("started", "good", 1),
        ("succeeded", "good", 1),
        ("worker_stopped", "", 0),
    ]


async def test_listeners_run_on_the_handlers_loop(memory_app: WorkerApp) -> None:
    threads: list[int] = []
    for name in ("started", "succeeded", "worker_started"):
        memory_app._hub.on(name)(lambda event: threads.append(threading.get_ident()))

    @memory_app.task(name="plain")
    def plain() -> None:
        return None

    await memory_app.put(plain.bind())
    await memory_app.drain()
    assert set(threads) == {threading.get_ident()} and len(threads) == 3


async def test_logs_never_quote_arguments_results_or_exception_texts(
    app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="holdfast")

    @app.task(name="leaky", retry=RetryPolicy.fixed(0, limit=1))
    async def leaky(word: str) -> str:
        raise ValueError(word)

    @app.task(name="fine")
    async def fine(word: str) -> str:
        return word

    await app.put(leaky.bind("hunter2"), fine.bind("hunter2"))
    await app.drain()
    assert "ValueError" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_blocked_loop_is_reported_with_the_culprits_stack(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.keeper.runners.LOOP_BLOCKED_SECONDS", 0.2)
    told = memory_app.listen("loop_blocked")

    @memory_app.task(name="culprit")
    async def culprit(ctx: Context) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while "has been blocked" not in caplog.text and time.monotonic() < until:
            _busy_bee()

    [job_id] = await memory_app.put(culprit.bind())
    await memory_app.drain(lease=2.0)
    [event] = told.seen
    assert event.jobs == (job_id,)
    assert "culprit" in event.stack and event.seconds > 0.2
    assert (await memory_app.job(job_id)).state is State.SUCCEEDED


def _busy_bee() -> None:
    sum(range(1000))


async def test_callbacks_under_way_are_waited_for_at_the_end(memory_app: WorkerApp) -> None:
    done: list[str] = []

    @memory_app._hub.on("succeeded")
    async def slowly(event: events.Succeeded) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append(event.job_id)

    @memory_app.task(name="plain")
    async def plain() -> None:
        return None

    ids = await memory_app.put(plain.bind())
    await memory_app.drain()
    assert done == ids
