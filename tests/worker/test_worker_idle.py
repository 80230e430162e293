"""What a worker does while it has no job: little. Nothing runs if there are no reports, and one poll is one claim."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.errors import BackendUnavailable
from holdfast.lifecycle import Settlement
from holdfast.records import ClaimRequest, Exchanged, Lease, NewJob, Release
from holdfast.worker.keeper import polls
from holdfast.worker.keeper.reports import FLUSH_WITHIN_SECONDS, Reports
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.processes import spawner, timeouts
from holdfast.worker.processes.pool import Pool

POLLS = 20
LEASE, OTHER = (
    Lease(id=name, token=f"token of {name}", fence=1, task="t", queue="q", args=b"", attempt=1) for name in "ab"
)


def test_reports_are_announced_once_until_all_were_taken() -> None:
    due: list[float] = []
    reports = Reports(due.append)
    reports.line(LEASE, "one")
    reports.progress(OTHER, 0.5, None)
    assert due == [FLUSH_WITHIN_SECONDS]
    taken = reports.take([LEASE.token])
    reports.line(LEASE, "two")
    assert due == [FLUSH_WITHIN_SECONDS], "the rest is still to be taken"
    assert len(reports.take(None)) == 2
    reports.put_back(taken)
    assert due == [FLUSH_WITHIN_SECONDS] * 2, "what could not be written is due again"


def test_a_report_that_cannot_wait_is_due_at_once() -> None:
    due: list[float] = []
    reports = Reports(due.append)
    reports.line(LEASE, "one")
    reports.slow_down(LEASE, 5.0)
    assert due == [FLUSH_WITHIN_SECONDS, 0.0]


class Counted(MemoryBackend):
    """Counts what an idle worker asks."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges = self.waits = self.settled = 0
        self.enough = threading.Event()

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        self.exchanges += 1
        answer = await super().exchange(settlements, releases, request, now)
        self.settled += len(settlements)
        return answer

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        self.waits += 1
        if self.waits > POLLS:
            self.enough.set()
        return await super().wait_for_work(queues, timeout)


async def test_a_poll_without_a_hint_is_one_claim() -> None:
    store = Counted()
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    async def any_job() -> None: ...

    worker = app.worker(poll_every=0.01)
    running = asyncio.create_task(worker.run(signals=False))
    assert await asyncio.to_thread(store.enough.wait, WAIT_SECONDS)
    exchanges = store.exchanges
    worker.request_stop()
    await running
    assert POLLS <= exchanges <= POLLS * 1.5, "a claim per poll, where there used to be two"


class Telling(Counted):
    """Tells, right or wrong, that there is nothing to claim, and gives no hints."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.asked, self.fails = 0, fails

    async def nothing_to_claim(self, worker: str, queues: Sequence[str], now: float | None = None) -> bool:
        self.asked += 1
        if self.fails:
            raise BackendUnavailable("it does not tell")
        return True

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()
        return False


async def test_a_poll_is_no_claim_while_the_store_tells_that_there_is_nothing() -> None:
    store = Telling()
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    async def any_job() -> None: ...

    worker = app.worker(poll_every=0.01)
    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(WAIT_SECONDS):
        await until(lambda: store.asked >= 3 * polls.WITHOUT_CLAIM_MAX)
    exchanges = store.exchanges
    worker.request_stop()
    await running
    assert exchanges <= 5, "the first claim, and every tenth poll"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_is_claimed_though_the_store_is_wrong_or_does_not_tell(fails: bool) -> None:
    store, ran = Telling(fails=fails), threading.Event()
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    async def any_job() -> None:
        ran.set()

    worker = app.worker(poll_every=0.01)
    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(WAIT_SECONDS):
        await until(lambda: store.asked > 0)
        await store.enqueue([NewJob(id="a", task="any", queue="default")])
        assert await asyncio.to_thread(ran.wait, WAIT_SECONDS)
    worker.request_stop()
    await running


async def test_a_poll_without_a_claim_still_wakes_the_loop_that_the_watchdog_watches() -> None:
    signals, renewal = Signals(), Mock(call=7)
    one = polls.Polls(Telling(), renewal, signals)
    signals.claim_due = False
    for _ in range(polls.WITHOUT_CLAIM_MAX):
        signals.wake.clear()
        await one.poll(("default",))
        assert signals.wake.is_set()
        assert not signals.claim_due
    await one.poll(("default",))
    assert signals.claim_due
    signals.claim_due, renewal.call = False, 8
    await one.poll(("default",))
    assert not signals.claim_due, "a claim was made, so the polls are counted anew"


async def test_a_single_job_takes_two_exchanges() -> None:
    """One that claims it and one that stores its outcome: while it runs, the worker listens and claims nothing."""
    store, goes_on = Counted(), threading.Event()
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    def any_job() -> None:
        goes_on.wait(WAIT_SECONDS)

    worker = app.worker(poll_every=10 * WAIT_SECONDS)
    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(WAIT_SECONDS):
        await until(lambda: store.waits == 1)
        for number in range(1, 6):
            goes_on.clear()
            await store.enqueue([NewJob(id=f"{number}", task="any", queue="default")])
            await until(lambda: store.waits == number + 1)  # noqa: B023 - it is called in this round
            goes_on.set()
            await until(lambda: store.settled == number)  # noqa: B023
            assert store.exchanges == 1 + 2 * number
    worker.request_stop()
    await running


async def test_a_job_that_comes_between_a_claim_and_listening_is_found() -> None:
    class Late(Counted):
        async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
            if not self.waits:  # the claim has found nothing
                await self.enqueue([NewJob(id="late", task="any", queue="default")])
            return await super().wait_for_work(queues, timeout)

    store = Late()
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    async def any_job() -> None: ...

    worker = app.worker(poll_every=10 * WAIT_SECONDS)
    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(WAIT_SECONDS):
        await until(lambda: store.settled == 1)
    worker.request_stop()
    await running


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what it waits for is counted on this loop
        await asyncio.sleep(0)


async def test_looks_at_unused_runners_are_rare_and_a_job_ends_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LOOK_SECONDS_UNUSED", 600.0)
    pool = Pool(spawner.Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    runner = Mock(jobs={}, blocked=False)
    pool.spawner.runners[1] = runner
    assert pool.unused()
    waiting = asyncio.create_task(pool.monitor._until_given())
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.monitor.expect(runner, [])
    async with asyncio.timeout(WAIT_SECONDS):
        await waiting


@pytest.mark.parametrize("why", ["a job runs", "a runner does not respond", "a suspect waits", "a killed job waits"])
async def test_runners_are_not_unused_while(why: str) -> None:
    pool = Pool(spawner.Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    pool.spawner.runners[1] = Mock(
        jobs={"token": Mock()} if why == "a job runs" else {}, blocked=why == "a runner does not respond"
    )
    if why == "a suspect waits":
        pool._waiting.append(LEASE)
    if why == "a killed job waits":
        pool._failed_by_kill[LEASE.token] = Mock()
    assert not pool.unused()
