"""A call that times out is not repeated unchanged: it asks for less, and the next ones grow back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp, soon

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.errors import BackendUnavailable, OutcomeUnknown, StoreSealed
from holdfast.lifecycle import Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, Held, Promoted, Release
from holdfast.worker.keeper import drain, exchange_loop
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.keeper.store_client import PATIENCE_MAX, AdaptiveLimit, StoreClient
from holdfast.worker.keeper.sweeps import Sweeper


def test_a_limit_halves_down_to_its_least_and_doubles_only_after_fast_answers() -> None:
    limit = AdaptiveLimit(100, 3)
    for expected in (50, 25, 12, 6, 3, 3):
        limit.timed_out()
        assert limit.value == expected
    assert limit.patience == 2, "it cannot ask for less"
    for expected in (4, 4):
        limit.timed_out()
        assert (limit.value, limit.patience) == (3, expected)
    limit.answered(0.5)
    assert (limit.value, limit.patience) == (3, 4), "twice as much, or less time, might time out"
    for expected in (6, 12, 24, 48, 96, 100):
        limit.answered(0.01)
        assert limit.value == expected
        assert limit.patience == 1
    assert not limit.shrunk


class Weak(MemoryBackend):
    """Exchanges above its strength are carried out, but the answer never comes."""

    def __init__(self, *, claims: int = 10**9, outcomes: int = 10**9) -> None:
        super().__init__()
        self.claims, self.outcomes = claims, outcomes
        self.requests: list[ClaimRequest] = []
        self.batches: list[int] = []

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        if request is not None:
            self.requests.append(request)
        self.batches.append(len(settlements))
        if request is not None and request.most > self.claims:
            raise OutcomeUnknown("exchange")  # rolled back whole at the call's timeout
        answer = await super().exchange(settlements, releases, request, now)
        if len(settlements) > self.outcomes:
            raise OutcomeUnknown("exchange")
        return answer


async def test_a_claim_that_times_out_asks_for_fewer_jobs_fewer_bytes_and_a_smaller_sweep() -> None:
    store = Weak(claims=3)
    app = WorkerApp(lambda: store)

    @app.task(name="any")
    async def any_job() -> None: ...

    jobs = await app.put(*(any_job.bind() for _ in range(100)))
    await app.drain(slots=100)
    assert [(await app.job(job)).attempts for job in jobs] == [1] * 100
    by_call: dict[int, list[ClaimRequest]] = {}
    for request in store.requests:
        by_call.setdefault(request.call, []).append(request)
    first = by_call[1]
    assert [request.most for request in first] == [100, 50, 25, 12, 6, 3]
    assert [request.sweep_max for request in first] == [200, 100, 50, 25, 12, 6]
    assert first[-1].bytes_max == first[0].bytes_max // 32
    for tries in by_call.values():
        for before, after in pairwise(tries):
            assert after.most <= before.most
            assert (after.bytes_max, after.sweep_max) <= (before.bytes_max, before.sweep_max)
    await app.close()


async def test_a_claim_that_cannot_ask_for_less_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with so little processor time that a claim of one job takes longer than a call may."""
    store, seen = Weak(), list[tuple[str, int]]()
    app = WorkerApp(lambda: store)
    real, count = StoreClient.call, store.count
    monkeypatch.setattr(exchange_loop, "backoff", lambda tries: 0.0)
    monkeypatch.setattr(drain, "backoff", lambda tries: 0.0)

    async def call(self: StoreClient, verb: str, answer: Awaitable[Any], patience: int = 1) -> Any:
        seen.append((verb, patience))
        patient = ("exchange", PATIENCE_MAX) in seen or len(seen) > 300  # the bound ends a run without patience
        store.claims = 10**9 if patient else 0
        return await real(self, verb, answer, patience)

    async def counted() -> Any:
        if ("count", PATIENCE_MAX) not in seen and len(seen) < 400:
            raise OutcomeUnknown("count")
        return await count()

    monkeypatch.setattr(StoreClient, "call", call)
    monkeypatch.setattr(store, "count", counted)

    @app.task(name="any")
    async def any_job() -> None: ...

    jobs = await app.put(any_job.bind())
    await app.drain(slots=2)
    assert [(await app.job(job)).attempts for job in jobs] == [1]
    for verb in ("exchange", "count"):
        given = [patience for name, patience in seen if name == verb]
        grown = given[: given.index(PATIENCE_MAX) + 1]
        assert grown == sorted(grown) and set(grown) == {1, 2, PATIENCE_MAX}
    assert ("exchange", 1) in seen[seen.index(("exchange", PATIENCE_MAX)) :], "fast again, so patience is over"
    await app.close()


async def test_jobs_are_marked_begun_in_smaller_batches_after_a_timeout() -> None:
    asked: list[int] = []

    class Slow(MemoryBackend):
        async def begin(self, refs: Sequence[Held], now: float | None = None) -> list[Answer]:
            asked.append(len(refs))
            if len(refs) > 3 and len(asked) < 50:
                raise OutcomeUnknown("begin")
            return await super().begin(refs, now)

    store = Slow()
    app = WorkerApp(lambda: store)

    @app.task(name="once", max_stalls=0)
    async def once() -> None: ...

    jobs = await app.put(*(once.bind() for _ in range(16)))
    drained = await app.drain(slots=16)
    assert drained.succeeded == 16
    assert [(await app.job(job)).attempts for job in jobs] == [1] * 16
    assert asked[:4] == [16, 8, 4, 2] and len(asked) < 20
    await app.close()


async def test_outcomes_that_are_too_many_for_one_call_are_sent_in_smaller_batches() -> None:
    store = Weak(outcomes=7)
    app = WorkerApp(lambda: store)
    go, running = asyncio.Event(), []
    lost = app.listen("lease_lost")

    @app.task(name="any")
    async def any_job() -> None:
        running.append(1)
        if len(running) == 64:
            go.set()
        await go.wait()

    jobs = await app.put(*(any_job.bind() for _ in range(64)))
    drained = await app.drain(slots=64)
    assert drained.succeeded == 64 and not lost.seen
    assert {(await app.job(job)).state for job in jobs} == {State.SUCCEEDED}
    assert [(await app.job(job)).attempts for job in jobs] == [1] * 64
    assert (max(store.batches) == 64 and 0 < store.batches[-1] <= 7) or store.batches[-1] == 0
    await app.close()


async def test_a_sweep_that_fails_leaves_the_others_alone_and_asks_for_less_the_next_time() -> None:
    asked: list[tuple[str, int]] = []

    class Slow(MemoryBackend):
        async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
            asked.append(("promote", limit))
            if limit > 100:
                raise OutcomeUnknown("promote")
            return await super().promote(limit=limit, now=now)

        async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
            asked.append(("prune", limit))
            return await super().prune(limit=limit, now=now)

        async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
            asked.append(("rearrange", limit))
            if limit > 200:
                raise OutcomeUnknown("rearrange")
            return len(asked) < 40

    store = Slow()
    app = WorkerApp(lambda: store)
    enough = asyncio.Event()

    @app.task(name="any")
    async def any_job() -> None: ...

    real = store.refill

    async def refill(*, limit: int = 500, now: float | None = None) -> int:
        if sum(verb == "promote" for verb, _ in asked) >= 5 and sum(verb == "rearrange" for verb, _ in asked) >= 5:
            enough.set()
        return await real(limit=limit, now=now)

    store.refill = refill  # type: ignore[method-assign]
    async with app.worker(sweep_every=0.01, lease=30.0):
        await soon(enough)
    promotes = [limit for verb, limit in asked if verb == "promote"]
    assert promotes[:4] == [500, 250, 125, 62]
    assert [limit for verb, limit in asked if verb == "rearrange"][:3] == [500, 250, 125]
    assert ("prune", 1000) in asked
    await app.close()


async def test_a_busy_store_that_refuses_at_once_makes_no_call_smaller() -> None:
    app = WorkerApp(MemoryBackend)
    store = StoreClient(MemoryBackend(), SystemClock(), 5.0)
    limit = AdaptiveLimit(10)

    async def refused() -> int:
        raise BackendUnavailable("not now.")

    with pytest.raises(BackendUnavailable):
        await store.call_within("promote", limit, lambda _: refused())
    assert limit.value == 10
    await app.close()


async def test_a_call_that_is_repeated_for_long_is_no_stuck_claim_loop(memory_app: WorkerApp) -> None:
    """A table is locked for many leases' time: renewals go on, exchanges are repeated, handlers live."""
    app = memory_app
    faulty = app.break_store()
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="long")
    async def long() -> str:
        begun.set()
        await go.wait()
        return "in good health"

    [job] = await app.put(long.bind())
    done = app.listen("succeeded")
    lease = 0.5
    async with app.worker(lease=lease, poll_every=0.01):
        await soon(begun)
        faulty.cut("exchange")
        until = time.monotonic() + 5 * lease  # a loop that is stuck ends the worker after three
        while time.monotonic() < until:
            await (await app.store()).wait_for_work(["none"], 0.05)
        go.set()
        faulty.mend()
        assert (await done.next()).job_id == job
    assert (await app.job(job)).attempts == 1


async def test_a_sealed_store_ends_the_sweeps(memory_app: WorkerApp) -> None:
    signals = Signals()

    class Sealed(MemoryBackend):
        async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
            raise StoreSealed("source", "moving", "elsewhere")

    sweeper = Sweeper(StoreClient(Sealed(), SystemClock(), 5.0), Mock(), signals)
    sweeping = asyncio.ensure_future(sweeper.sweep_forever(0.001))
    await asyncio.wait_for(signals.wake.wait(), WAIT_SECONDS)
    assert signals.sealed is not None and signals.sealed.other == "elsewhere" and signals.closing
    sweeping.cancel()


async def test_a_worker_starts_although_its_rules_cannot_be_stored_and_tells_them_later(app: WorkerApp) -> None:
    faulty = app.break_store()
    faulty.refuse("declare", 3)
    done = app.listen("succeeded")

    @app.task(name="limited", limit=2)
    async def limited() -> None: ...

    [job] = await app.put(limited.bind())
    store = await app.store()
    async with app.worker(sweep_every=None, lease=30.0):
        assert (await done.next()).job_id == job
        async with asyncio.timeout(WAIT_SECONDS):
            while not any(one.rule.limit == 2 for one in await store.tasks()):
                await store.wait_for_work(["none"], 0.01)
    assert faulty.calls.count("declare") == 4


async def test_a_store_that_is_away_is_asked_for_one_sweep_at_a_time_and_ever_more_seldom() -> None:
    asked: list[str] = []

    class Away(MemoryBackend):
        async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
            asked.append("promote")
            raise BackendUnavailable("away.")

        async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
            asked.append("prune")
            return 0

    sweeper = Sweeper(StoreClient(Away(), SystemClock(), 5.0), Mock(), Signals())
    for tries in range(1, 4):
        assert not await sweeper._each([sweeper._promote, sweeper._prune])
        assert sweeper._failed == tries
    assert asked == ["promote"] * 3


async def test_after_the_fence_a_renewal_that_goes_on_failing_is_logged_now_and_then(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory_app
    faulty = app.break_store()
    fenced = app.listen("fence_passed")

    @app.task(name="any")
    async def any_job() -> None: ...

    async with app.worker(lease=0.5, poll_every=0.01):
        faulty.cut("renew", "register")
        await fenced.next()
        caplog.clear()
        tries = faulty.calls.count("renew")
        async with asyncio.timeout(WAIT_SECONDS):
            while faulty.calls.count("renew") < tries + 6:
                await (await app.store()).wait_for_work(["none"], 0.01)
        assert sum("could not renew its leases (" in record.getMessage() for record in caplog.records) <= 1
        faulty.mend()


async def test_an_outage_is_one_warning_of_the_sweeps(memory_app: WorkerApp, caplog: pytest.LogCaptureFixture) -> None:
    tried = asyncio.Event()

    class Down(MemoryBackend):
        tries = 0

        async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
            self.tries += 1
            if self.tries == 5:
                tried.set()
            raise BackendUnavailable("the store is down")

    sweeper = Sweeper(StoreClient(Down(), SystemClock(), 5.0), Mock(), Signals())
    with caplog.at_level("WARNING", "holdfast"):
        sweeping = asyncio.ensure_future(sweeper.sweep_forever(0.001))
        await asyncio.wait_for(tried.wait(), WAIT_SECONDS)
        sweeping.cancel()
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["sweep promote failed"]
