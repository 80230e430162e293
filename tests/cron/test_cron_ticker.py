"""Many tickers on one store: each tick is fired once, whichever is killed and wherever the clock goes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.cron.api import change, find, pause, put, resume
from holdfast.cron.entry import CronOptions, wanted_entry
from holdfast.cron.tick import tick_id
from holdfast.errors import BackendUnavailable
from holdfast.events import Event, Hub
from holdfast.records import CronEntry, JobQuery, NewJob, TaskRule, Tick
from holdfast.worker.keeper.cron_ticker import CronTicker
from holdfast.worker.keeper.declare import Declared
from holdfast.worker.keeper.runners import InProcessRunners, Signals
from holdfast.worker.keeper.store_client import StoreClient

START = 1_772_323_200.0  # 2026-03-01


class Hands:
    """A clock whose hands the test moves, back too."""

    def __init__(self) -> None:
        self.now = START

    def wall(self) -> float:
        return self.now

    def steady(self) -> float:
        return self.now


class Listening(InProcessRunners):
    """No runner: events are kept."""

    def __init__(self, signals: Signals) -> None:
        super().__init__(Mock(), Hub(), signals)
        self.worker = "w"
        self.emitted: list[Event] = []

    def wanted(self, *names: str) -> bool:
        return "enqueued" in names

    def deliver(self, seen: list[Event]) -> None:
        self.emitted += seen


def declared(*entries: CronEntry, tasks: tuple[str, ...] = ()) -> Declared:
    return Declared((), tuple(TaskRule(name=name) for name in tasks), entries)


def entry_of(name: str, *, code: bool = True, queue: str = "q", **options: Any) -> CronEntry:
    return wanted_entry(name, NewJob(id="", task="t", queue=queue), CronOptions(**options), declared=code)


def ticker_on(backend: Any, said: Declared, queues: tuple[str, ...] = ("q",)) -> CronTicker:
    signals = Signals()
    return CronTicker(StoreClient(backend, SystemClock(), 5.0), Listening(signals), signals, said, queues, 5.0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def jobs_of(backend: MemoryBackend) -> list[str]:
    return [job.id for job in await backend.find(JobQuery(limit=100_000))]


def test_a_thousand_ticks_by_six_tickers_with_kills_and_a_clock_set_back_are_each_fired_once() -> None:
    async def scene() -> None:
        chance, clock = random.Random(7), Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        said = declared(entry_of("often", every=10.0, catch_up="all", window=1e6))
        tickers = [ticker_on(backend, said) for _ in range(6)]
        top = clock.now
        while clock.now < START + 10_050 or clock.now < top:
            clock.now += chance.choice((3.0, 10.0, 25.0))
            top = max(top, clock.now)
            if chance.random() < 0.05:
                clock.now -= 200.0
            under_way = [asyncio.ensure_future(ticker.look()) for ticker in tickers]
            for place, task in enumerate(under_way):
                if chance.random() < 0.1:  # killed in the middle, and started anew
                    await asyncio.sleep(0)
                    task.cancel()
                    tickers[place] = ticker_on(backend, said)
            await asyncio.gather(*under_way, return_exceptions=True)
        for _ in range(3):
            await asyncio.gather(*(ticker.look() for ticker in tickers))
        entry = await find(backend, "often")
        assert entry is not None
        made = Counter(await jobs_of(backend))
        ticks = [entry.created_at + count * 10.0 for count in range(1, entry.fired + 1)]
        assert entry.fired >= 1000
        assert entry.skipped == 0
        assert made == Counter(tick_id(entry, at) for at in ticks)

    run(scene())


def test_a_worker_fires_what_its_code_declares_and_what_it_serves() -> None:
    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        mine, others = entry_of("mine", every=10.0), entry_of("others", every=10.0)
        served, known = entry_of("served", code=False, every=10.0), entry_of("known", code=False, queue="p", every=10.0)
        for entry in (others, served, known):
            await put(entry, backend)
        await backend.tick(
            Tick(name="odd", version=0, entry=CronEntry(name="odd", every=1.0, next_at=START, call=b"?"))
        )
        ticker = ticker_on(backend, declared(mine))
        await ticker.look()
        clock.now += 10.0
        await ticker.look()
        fired = {entry.name: entry.fired for entry in await backend.entries()}
        assert fired == {"mine": 1, "others": 0, "served": 1, "known": 0, "odd": 0}
        ticker.serve(("r",), declared(others, tasks=("t",)))
        clock.now += 10.0
        await ticker.look()
        fired = {entry.name: entry.fired for entry in await backend.entries()}
        assert fired == {"mine": 1, "others": 1, "served": 2, "known": 1, "odd": 0}

    run(scene())


def test_code_that_changes_while_an_entry_is_being_stored_loses_none() -> None:
    async def scene() -> None:
        backend = MemoryBackend(Hands())
        await backend.open()
        entries = backend.entries

        async def with_a_new_runner() -> Any:
            """A runner with newer code says what it declares just now."""
            backend.entries = entries  # type: ignore[method-assign]
            ticker.serve(("q",), declared(entry_of("newer", every=10.0), entry_of("newest", every=10.0)))
            return await entries()

        backend.entries = with_a_new_runner  # type: ignore[method-assign]
        ticker = ticker_on(backend, declared(entry_of("old", every=10.0)))
        await ticker.look()
        await ticker.look()
        assert [entry.name for entry in await backend.entries()] == ["newer", "newest", "old"]

    run(scene())


def test_it_looks_again_when_the_next_tick_is_due_and_no_later_than_its_interval() -> None:
    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        ticker = ticker_on(backend, declared(entry_of("slow", every=1000.0)))
        assert await ticker.look() == 5.0
        clock.now += 998.0
        assert 2.0 <= await ticker.look() <= 2.1
        clock.now += 2.0
        assert await ticker.look() == 5.0
        await pause("slow", "", "", backend)
        clock.now += 5000.0
        assert await ticker.look() == 5.0
        resumed = await resume("slow", backend)
        assert resumed.fired == 1

    run(scene())


def test_listeners_hear_of_the_jobs_and_the_worker_looks_for_them() -> None:
    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        ticker = ticker_on(backend, declared(entry_of("often", every=10.0)))
        await ticker.look()
        assert not ticker._signals.wake.is_set()
        clock.now += 10.0
        await ticker.look()
        runners: Any = ticker._runners
        assert [(event.name, event.task, event.queue) for event in runners.emitted] == [("enqueued", "t", "q")]
        assert ticker._signals.wake.is_set()

    run(scene())


def test_a_store_that_fails_costs_nothing_but_time() -> None:
    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()

        class Away:
            def __getattr__(self, name: str) -> Any:
                async def refused(*args: Any, **kwargs: Any) -> Any:
                    raise BackendUnavailable("away")

                return refused

        ticker = ticker_on(Away(), declared(entry_of("often", every=10.0)))
        assert await ticker.look() == 5.0
        ticker._store = StoreClient(backend, SystemClock(), 5.0)
        await ticker.look()
        assert [entry.name for entry in await backend.entries()] == ["often"]

    run(scene())


def test_an_entry_that_cannot_be_fired_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster its shard may be silent."""

    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        tick = backend.tick

        async def one_is_away(wanted: Tick, now: float | None = None) -> Any:
            if wanted.name == "b" and wanted.jobs:
                raise BackendUnavailable("away")
            return await tick(wanted, now)

        monkeypatch.setattr(backend, "tick", one_is_away)
        ticker = ticker_on(backend, declared(*(entry_of(name, every=10.0) for name in "abc")))
        await ticker.look()
        clock.now += 10.0
        assert await ticker.look() == 5.0
        assert {entry.name: entry.fired for entry in await backend.entries()} == {"a": 1, "b": 0, "c": 1}

    run(scene())


def test_a_change_against_too_many_rivals_gives_up() -> None:
    async def scene() -> None:
        backend = MemoryBackend(Hands())
        await backend.open()
        await put(entry_of("x", every=10.0), backend)
        stale = CronEntry(name="x")
        with pytest.raises(BackendUnavailable, match="keeps being changed"):
            await change(backend, "x", lambda entry, now: Tick(name="x", version=99, entry=stale))

    run(scene())


def test_what_code_declares_again_is_noted_once_a_minute() -> None:
    async def scene() -> None:
        clock = Hands()
        backend = MemoryBackend(clock)
        await backend.open()
        wanted = entry_of("x", every=10.0)
        first = await put(wanted, backend)
        clock.now += 30.0
        assert await put(wanted, backend) == first
        clock.now += 31.0
        later = await put(wanted, backend)
        assert (later.version, later.declared_at) == (first.version + 1, START + 61.0)

    run(scene())
