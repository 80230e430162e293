"""Holdfast: durable writes, leases, `holdfast work` (keeper and runners) unless HOLDFAST_FORM is `embedded` or
`exchange`: nothing of a worker but its exchanges with the store, one job at a time.

`holdfast work` loads `app` from here in its runners. HOLDFAST_RUNNERS, HOLDFAST_LEASE, HOLDFAST_SHARDS and BENCH_SLOTS
say how; groups have the defaults: strict, one job at a time. HOLDFAST_GROUP_PREFETCH: this many jobs of a group are
leased together. HOLDFAST_ISOLATED: there is an isolated task, too. BENCH_TRACE: its exchanges are recorded (traced.py).
BENCH_DEFAULTS: the worker is given neither slots nor runners.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import tally

from holdfast import BoundCall, Context, Holdfast, RetryPolicy

app = Holdfast(tally.URL)
app.queue(
    "default",
    shards=int(os.environ.get("HOLDFAST_SHARDS", "12")),  # used only by Cluster
    group_prefetch=int(os.environ.get("HOLDFAST_GROUP_PREFETCH", "1")),
)


AGAIN: dict[str, Any] = {"retry": RetryPolicy(limit=None, delays=[0.001])} if tally.FAILS else {}
for queue in tally.queues():
    app.queue(queue)


if tally.HANDLER.startswith(("cpu", "block")):

    @app.task(name="nothing")
    def nothing(number: int, data: str = "") -> None:
        tally.handled()

elif tally.HANDLER:

    @app.task(name="nothing", **AGAIN)
    async def nothing(number: int, data: str = "") -> None:
        await tally.ahandled()

else:

    @app.task(name="nothing")
    async def nothing(number: int, data: str = "") -> None:
        tally.called()


@app.task(name="timed")
async def timed(sent: float) -> None:
    tally.delayed(sent)
    if tally.TIMED_SECONDS:
        await asyncio.sleep(tally.TIMED_SECONDS)


@app.task(name="stepped")
async def stepped(ctx: Context) -> None:
    tally.stepped(ctx.id, "started")


@app.task(name="sleepy")
async def sleepy() -> None:
    tally.happened("start")
    await asyncio.sleep(tally.SLEEPY_SECONDS)
    tally.happened("end")


if os.environ.get("HOLDFAST_ISOLATED"):  # a task with a rule costs every claim, so only where it is measured

    @app.task(name="alone", isolation="process")
    def alone(number: int) -> None:
        tally.called()


def fan_in(jobs: int) -> Iterator[BoundCall[None]]:
    """All but the last are parents of the last."""
    calls = [nothing.bind(number) for number in range(jobs - 1)]
    yield from calls
    yield nothing.options(after=calls).bind(jobs)


def chain(jobs: int) -> Iterator[BoundCall[None]]:
    call = nothing.bind(0)
    yield call
    for number in range(1, jobs):
        call = nothing.options(after=[call]).bind(number)
        yield call


def beside_waiting(jobs: int) -> Iterator[BoundCall[None]]:
    """Plain jobs in a store where a thousand others wait for jobs that are due tomorrow."""
    parents = [nothing.options(delay=86_400).bind(number) for number in range(1000)]
    app.enqueue_many([*parents, *(nothing.options(after=[parent]).bind(0) for parent in parents)])
    yield from (nothing.bind(number) for number in range(jobs))


SHAPES = {"fan-in": fan_in, "chain": chain, "beside-waiting": beside_waiting}


def one(jobs: int) -> None:
    with app:
        app.open()
        tally.timed(jobs, lambda: [nothing.enqueue(number) for number in range(jobs)])


def bulk(jobs: int, shape: str = "none") -> None:
    task = app.task_by_name("alone") if shape == "alone" else nothing
    with app:
        app.open()
        if tally.QUEUES:
            calls = (task.options(queue=tally.queue_of(number)).bind(number) for number in range(jobs))
        elif shape in ("none", "alone"):
            calls = (task.bind(number, *tally.MORE) for number in range(jobs))
        elif shape in SHAPES:
            calls = iter(list(SHAPES[shape](jobs)))
        else:
            calls = (task.options(group=tally.group_of(shape, n, jobs)).bind(n) for n in range(jobs))
        tally.timed(jobs, lambda: app.enqueue_many(calls))


def pace(jobs: int, gap_ms: int) -> None:
    with app:
        app.open()
        tally.pace(timed.enqueue, jobs, gap_ms)


def steps(jobs: int, gap_ms: int) -> None:
    """Like pace; also records each job's id with the times at which its enqueue was called and returned."""
    noted: list[tuple[str, float, float]] = []

    def enqueue(called: float) -> None:
        noted.append((stepped.enqueue().id, called, time.monotonic()))

    with app:
        app.open()
        tally.pace(enqueue, jobs, gap_ms)
    for name, called, returned in noted:
        tally.stepped(name, "called", called)
        tally.stepped(name, "returned", returned)


def crash() -> None:
    with app:
        sleepy.enqueue()


async def exchange() -> None:
    """Settle the last job and lease the next, until there is none. The handler is where the bare store's is."""
    import apart  # here, so that workers and their runners do not import it

    from holdfast.backends import open_backend
    from holdfast.lifecycle import Ending, Settlement
    from holdfast.records import ClaimRequest, WorkerRecord

    backend, handle, done = open_backend(tally.URL), apart.Handler(), list[Settlement]()
    await backend.open()
    await backend.register(WorkerRecord(id="bench", lease_seconds=600.0))
    for call in itertools.count(1):
        request = ClaimRequest(worker="bench", call=call, queues=("default",), most=1)
        leases = (await backend.exchange(done, (), request)).leases
        if not leases:
            break
        handle(leases[0].args)
        done = [Settlement(id=leases[0].id, token=leases[0].token, ending=Ending.SUCCEEDED)]
    handle.close()
    await backend.close()


def work() -> None:
    form = os.environ.get("HOLDFAST_FORM")
    if form == "embedded":
        with app:
            app.work(slots=tally.SLOTS)
        return
    if form == "exchange":
        asyncio.run(exchange())
        return
    words = ["--runners", os.environ.get("HOLDFAST_RUNNERS", "1"), "--slots", str(tally.SLOTS)]
    if tally.DEFAULTS:
        words = []
    if tally.QUEUES:
        words += ["--queues", ",".join(tally.queues())]
    if lease := os.environ.get("HOLDFAST_LEASE"):
        words += ["--lease", lease]
    here = os.path.dirname(os.path.abspath(__file__))
    program = [os.path.join(here, "traced.py")] if os.environ.get("BENCH_TRACE") else ["-m", "holdfast.cli"]
    os.execv(  # noqa: S606
        sys.executable, [sys.executable, *program, "work", "with_holdfast:app", "--app-dir", here, *words]
    )


if __name__ == "__main__":
    import with_holdfast as loaded  # by the name the runners load it

    tally.main(
        one=loaded.one, bulk=loaded.bulk, pace=loaded.pace, steps=loaded.steps, crash=loaded.crash, work=loaded.work
    )  # fmt: skip
