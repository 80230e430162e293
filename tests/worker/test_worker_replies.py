"""Answers that never come: the same exchange is repeated, nothing is lost, doubled or counted twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.worker.worker_bench import WorkerApp

from holdfast.context import Context
from holdfast.lifecycle import State
from holdfast.records import JobQuery
from holdfast.retry import RetryPolicy


@pytest.mark.parametrize("fault", ["lost", "refused"])
async def test_exchanges_without_answers_lose_and_double_nothing(app: WorkerApp, fault: str) -> None:
    runs: Counter[str] = Counter()

    @app.task(name="steady")
    async def steady(ctx: Context) -> None:
        runs[ctx.id] += 1

    @app.task(name="grouped", group=lambda n: f"g{n % 3}")
    async def grouped(ctx: Context, n: int) -> None:
        runs[ctx.id] += 1

    @app.task(name="shaky", retry=RetryPolicy.fixed(0, limit=5))
    async def shaky(ctx: Context) -> None:
        runs[ctx.id] += 1
        if ctx.attempt < 3:
            raise ValueError

    faulty = app.break_store()
    calls = (
        [steady.bind() for _ in range(40)] + [grouped.bind(n) for n in range(30)] + [shaky.bind() for _ in range(20)]
    )
    random.Random(7).shuffle(calls)
    ids = await app.put(*calls)
    faulty.every(2, "exchange", fault)
    lost = app.listen("lease_lost")
    drained = await app.drain(slots=8)
    assert drained.succeeded == 90 and drained.failed == 40 and drained.left == 0
    for job_id in ids:
        job = await app.job(job_id)
        wanted = 3 if job.task == "shaky" else 1
        assert job.state is State.SUCCEEDED
        assert (runs[job_id], job.attempts, job.failures, job.stalls) == (wanted, wanted, wanted - 1, 0)
    assert not lost.seen
    assert faulty.calls.count("exchange") > 30


async def test_random_faults_on_every_verb_keep_the_counters_exact(app: WorkerApp) -> None:
    dice = random.Random(11)
    runs: Counter[str] = Counter()

    @app.task(name="some", retry=RetryPolicy.fixed(0, limit=3), group=lambda n: f"g{n % 5}" if n % 2 else f"h{n}")
    async def some(ctx: Context, n: int) -> None:
        runs[ctx.id] += 1
        ctx.progress(0.5)
        if n % 4 == 0 and ctx.attempt == 1:
            raise ValueError

    faulty = app.break_store()
    for verb in ("exchange", "renew", "report", "promote", "recover", "refill", "prune", "count"):
        faulty.every(dice.choice([2, 3]), verb, dice.choice(["lost", "refused"]))
    ids = await app.put(*(some.bind(n) for n in range(120)))
    await app.drain(slots=16, sweep_every=0.02)
    for n, job_id in enumerate(ids):
        job = await app.job(job_id)
        wanted = 2 if n % 4 == 0 else 1
        assert (job.state, runs[job_id], job.attempts, job.failures, job.stalls) == (
            State.SUCCEEDED,
            wanted,
            wanted,
            wanted - 1,
            0,
        )


async def test_a_call_that_hangs_is_given_up_and_repeated(memory_app: WorkerApp) -> None:
    app = memory_app
    faulty = app.break_store()
    store = await app.store()
    hung: list[bool] = []
    real = store.exchange

    async def exchange(*args: object, **kwargs: object) -> object:
        answer = await real(*args, **kwargs)  # type: ignore[arg-type]
        if not hung and answer.leases:
            hung.append(True)
            await asyncio.Event().wait()
        return answer

    faulty.exchange = exchange  # type: ignore[attr-defined]
    runs: list[int] = []

    @app.task(name="one")
    async def one() -> None:
        runs.append(1)

    [job_id] = await app.put(one.bind())
    await app.drain(lease=1.0)
    assert hung and runs == [1]
    assert (await app.job(job_id)).attempts == 1


async def test_outcomes_wait_for_the_store_and_are_recorded_when_it_is_back(app: WorkerApp) -> None:
    faulty = app.break_store()
    blocked, succeeded = app.listen("store_blocked"), app.listen("succeeded")
    began = asyncio.Event()

    @app.task(name="brief")
    async def brief() -> None:
        began.set()
        faulty.cut("*")

    ids = await app.put(brief.bind())
    async with app.worker(lease=1.0):
        await blocked.next()
        assert (await app.job(ids[0])).state is State.RUNNING
        faulty.mend()
        await succeeded.next()
    assert (await app.job(ids[0])).attempts == 1


async def test_stopping_while_the_store_is_away_ends_in_time_and_says_what_was_not_recorded(
    app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = app.break_store()
    done = asyncio.Event()

    @app.task(name="brief")
    async def brief() -> None:
        faulty.cut("exchange", "retire")
        done.set()

    [job_id] = await app.put(brief.bind())
    async with app.worker(lease=1.0, grace=0.1):
        await done.wait()
    assert "unsent outcome" in caplog.text
    job = await app.job(job_id)
    assert job.state is State.RUNNING, "its lease lapses by itself"


async def test_surprising_errors_of_a_backend_do_not_end_the_worker(memory_app: WorkerApp) -> None:
    app = memory_app
    faulty = app.break_store()
    store = await app.store()
    real, surprises = store.exchange, [RuntimeError("bug"), KeyError("bug")]

    async def exchange(*args: object, **kwargs: object) -> object:
        if surprises:
            raise surprises.pop()
        return await real(*args, **kwargs)  # type: ignore[arg-type]

    faulty.exchange = exchange  # type: ignore[attr-defined]

    @app.task(name="fine")
    async def fine() -> None:
        return None

    await app.put(fine.bind())
    assert (await app.drain()).succeeded == 1
    assert len(await store.find(JobQuery(states=(State.SUCCEEDED,)))) == 1
