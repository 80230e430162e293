"""Rolling deploys: a worker that does not know a task leaves it to those that do, at once and at little cost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast.backends.contract import Backend
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.inspection import explain
from holdfast.lifecycle import State
from holdfast.records import Exchanged, JobQuery, NewJob
from holdfast.worker_status import read


def rolling(store: MemoryBackend | Any) -> tuple[WorkerApp, WorkerApp, asyncio.Event, list[int]]:
    """Two versions of an app on one store: only the second one has `fresh`."""
    old, new = WorkerApp(lambda: store), WorkerApp(lambda: store)
    done, ran = asyncio.Event(), list[int]()

    for app in (old, new):

        @app.task(name="both")
        async def both() -> None: ...

    @new.task(name="fresh")
    async def fresh(n: int) -> None:
        ran.append(n)
        if len(ran) >= 20:
            done.set()

    return old, new, done, ran


def counting(store: MemoryBackend) -> Counter[tuple[str, str]]:
    """Counts which worker was leased jobs of which task."""
    leased: Counter[tuple[str, str]] = Counter()
    real = store.exchange

    async def exchange(settlements: Any, releases: Any, request: Any, now: float | None = None) -> Exchanged:
        answer = await real(settlements, releases, request, now)
        if request is not None:
            leased.update((request.worker, lease.task) for lease in answer.leases)
        return answer

    store.exchange = exchange  # type: ignore[method-assign]
    return leased


async def until(condition: Any, store: Backend) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not await condition():
            await store.wait_for_work(["none"], 0.01)


async def test_jobs_of_a_new_task_run_on_the_new_worker_beside_an_old_one() -> None:
    store = MemoryBackend()
    leased = counting(store)
    old, new, done, ran = rolling(store)
    unknown = old.listen("unknown_task")
    async with old.worker(slots=4, poll_every=0.01):
        await new.put(*(new.tasks["fresh"].bind(n=n) for n in range(20)))
        await unknown.next()
        async with new.worker(slots=4, poll_every=0.01):
            await asyncio.wait_for(done.wait(), WAIT_SECONDS)
        assert sorted(ran) == list(range(20))
        [mine] = await store.workers()
        assert leased[mine.id, "fresh"] <= 4, "one claim's worth, then none"
        view = read(mine.portrait)
        await until(lambda: _shows(store, mine.id, "fresh"), store)
        assert view is None or view.unknown in ((), ("fresh",))
    overrides = [one.override for one in await store.tasks() if one.rule.name == "fresh"]
    assert overrides in ([], [None]), "what it set goes with it"
    for app in (old, new):
        await app.close()


async def _shows(store: Backend, worker: str, task: str) -> bool:
    for one in await store.workers():
        view = read(one.portrait)
        if one.id == worker and view is not None and task in view.unknown:
            return True
    return False


async def test_a_job_of_an_unknown_task_is_never_shown_as_started(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdfast")
    store = MemoryBackend()
    old, new, _, _ = rolling(store)
    unknown = old.listen("unknown_task")
    async with old.worker(slots=4, poll_every=0.01):
        await new.put(new.tasks["fresh"].bind(n=1), new.tasks["both"].bind())
        await unknown.next()
        await until(lambda: _succeeded(store, "both"), store)
    lines = [vars(record) for record in caplog.records if record.name == "holdfast.jobs"]
    assert [(line["event"], line["task"]) for line in lines] == [("started", "both"), ("succeeded", "both")]
    kept = [event for event in (await store.events(0)).events if event.name == "started"]
    assert len(kept) == 1 and b'"both"' in kept[0].body
    for app in (old, new):
        await app.close()


async def _succeeded(store: Backend, task: str) -> bool:
    return bool(await store.find(JobQuery(states=(State.SUCCEEDED,), task=task)))


async def test_explain_says_who_does_not_know_the_task() -> None:
    store = MemoryBackend()
    old, new, _, _ = rolling(store)
    [job] = await new.put(new.tasks["fresh"].bind(n=1))
    async with old.worker(slots=4, poll_every=0.01, renew_every=0.05, lease=30.0):
        [mine] = await store.workers()
        await until(lambda: _shows(store, mine.id, "fresh"), store)
        told = await explain(store, job)
        assert any("No live worker of queue 'default' knows task 'fresh'" in one for one in told.sentences)
        record = await store.get(job)
        assert record is not None and record.state is State.READY, "it keeps its turn"
    await old.close()


async def test_where_it_cannot_be_set_apart_a_job_is_put_off() -> None:
    store = MemoryBackend()
    old, new, _, _ = rolling(store)
    faulty = old.break_store()
    faulty.cut("limit")
    [job] = await new.put(new.tasks["fresh"].bind(n=1))
    async with old.worker(slots=4, poll_every=0.01):
        await until(lambda: _is(store, job, State.SCHEDULED), store)
    await old.close()


async def _is(store: Backend, job: str, state: State) -> bool:
    record = await store.get(job)
    return record is not None and record.state is state


async def test_a_removed_override_is_set_again_and_one_without_effect_costs_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that keeps no word on lanes: the job comes again in spite of it, and is put off."""
    store = MemoryBackend()
    said: list[Any] = []

    async def limit(override: Any, now: float | None = None) -> None:
        said.append(override)

    monkeypatch.setattr(store, "limit", limit)
    leased = counting(store)
    old, new, _, _ = rolling(store)
    [job] = await new.put(new.tasks["fresh"].bind(n=1))
    async with old.worker(slots=4, poll_every=0.01):
        await until(lambda: _is(store, job, State.SCHEDULED), store)
    assert [one.apart for one in said] == [True, None]
    assert leased.total() == 2
    await old.close()


async def test_more_unknown_tasks_than_are_remembered_are_put_off_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker.keeper import unknown_tasks

    monkeypatch.setattr(unknown_tasks, "TASKS_MAX", 2)
    store = MemoryBackend()
    old, _, _, _ = rolling(store)
    ids = [f"j{n}" for n in range(5)]
    await store.enqueue([NewJob(id=job, task=f"t{n}") for n, job in enumerate(ids)])

    async def settled() -> bool:
        states: Sequence[Any] = [await store.get(job) for job in ids]
        return Counter(one.state for one in states) == {State.READY: 2, State.SCHEDULED: 3}

    async with old.worker(slots=4, poll_every=0.01):
        await until(settled, store)
    await old.close()


async def test_a_backlog_of_unknown_tasks_is_not_asked_for_without_end_however_slow_a_look_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits for work returns at once, again and again: there is work, but not for this worker. That a look took
    a while, as it does on a busy server or over a long line, is no sign that the work has just come."""
    from holdfast.worker.keeper import exchange_loop

    store = MemoryBackend()
    old, new, _, _ = rolling(store)
    exchanges, asked, slow = 0, list[int](), threading.Event()
    real = store.exchange

    def done() -> None:
        asked.append(exchanges)
        slow.set()

    async def exchange(settlements: Any, releases: Any, request: Any, now: float | None = None) -> Exchanged:
        nonlocal exchanges
        exchanges += request is not None and request.most_by_task.get("fresh") == 0
        if exchanges == 300:
            done()
        return await real(settlements, releases, request, now)

    async def sleep(seconds: float) -> None:
        if seconds >= exchange_loop.UNKNOWN_WAIT_SECONDS_MAX:
            done()
        await asyncio.sleep(0)

    monkeypatch.setattr(store, "exchange", exchange)
    monkeypatch.setattr(exchange_loop, "EARLY_SECONDS", 0.0)  # every look takes longer than this
    monkeypatch.setattr(exchange_loop, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    await new.put(*(new.tasks["fresh"].bind(n=n) for n in range(20)))
    async with old.worker(slots=4):
        assert await asyncio.to_thread(slow.wait, WAIT_SECONDS)
    assert asked[0] < 20, "it slows down to one claim in half a second"
    await old.close()
