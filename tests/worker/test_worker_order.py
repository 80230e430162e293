"""Order within groups, several queues, several workers."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

from tests.worker.worker_bench import WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context
from holdfast.lifecycle import State
from holdfast.records import JobQuery
from holdfast.worker.embedded import Drained


async def test_two_thousand_jobs_of_fifty_groups_keep_their_order(app: WorkerApp) -> None:
    ran: dict[str, list[int]] = defaultdict(list)
    running: dict[str, int] = defaultdict(int)
    overlaps: list[str] = []

    @app.task(name="step", group=lambda n: f"g{n % 50}")
    async def step(ctx: Context, n: int) -> None:
        assert ctx.group is not None
        running[ctx.group] += 1
        if running[ctx.group] > 1:
            overlaps.append(ctx.group)
        ran[ctx.group].append(n)
        if n % 7 == 0:
            await asyncio.sleep(0)
        running[ctx.group] -= 1

    await app.put(*(step.bind(n) for n in range(2000)))
    assert await app.drain(slots=64) == Drained(succeeded=2000, failed=0, left=0)
    assert not overlaps
    assert len(ran) == 50
    assert all(numbers == sorted(numbers) for numbers in ran.values())


async def test_two_workers_share_the_work_and_run_every_job_once(app: WorkerApp) -> None:
    ran: dict[str, list[int]] = defaultdict(list)
    guard = threading.Lock()

    @app.task(name="step", group=lambda n: f"g{n % 20}")
    async def step(ctx: Context, n: int) -> None:
        with guard:
            ran[ctx.group or ""].append(n)

    @app.task(name="loose")
    def loose(ctx: Context) -> None:
        with guard:
            ran[ctx.id].append(0)

    calls = [step.bind(n) for n in range(400)]
    calls += [loose.bind() for _ in range(200)]
    await app.put(*calls)

    def another() -> Drained:
        return asyncio.run(app.drain(slots=8))

    beside = asyncio.create_task(asyncio.to_thread(another))
    mine, theirs = await app.drain(slots=8), await beside
    assert mine.succeeded + theirs.succeeded == 600
    assert sum(map(len, ran.values())) == 600
    assert all(numbers == sorted(numbers) for numbers in ran.values())
    jobs = await (await app.store()).find(JobQuery(limit=1000))
    assert {(job.state, job.attempts, job.stalls) for job in jobs} == {(State.SUCCEEDED, 1, 0)}


async def test_no_queue_starves_another(app: WorkerApp) -> None:
    order: list[str] = []

    @app.task(name="loud", queue="loud")
    async def loud() -> None:
        order.append("loud")

    @app.task(name="quiet", queue="quiet")
    async def quiet() -> None:
        order.append("quiet")

    await app.put(*(loud.bind() for _ in range(50)), *(quiet.bind() for _ in range(5)))
    await app.drain(slots=1)
    assert order[:10].count("quiet") >= 4


async def test_a_queue_with_a_cap_takes_no_more_slots_than_that(app: WorkerApp) -> None:
    running: set[str] = set()
    most = 0
    both, light_ran, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task(name="heavy", queue="heavy")
    async def heavy(ctx: Context) -> None:
        nonlocal most
        running.add(ctx.id)
        most = max(most, len(running))
        if len(running) == 2:
            both.set()
        await go.wait()
        running.discard(ctx.id)

    @app.task(name="light", queue="light")
    async def light() -> None:
        light_ran.set()

    await app.put(*(heavy.bind() for _ in range(6)))
    draining = asyncio.create_task(app.drain(slots=8, queues={"heavy": 2, "light": None}))
    await soon(both)
    await app.put(light.bind())
    await soon(light_ran)
    go.set()
    assert (await draining).succeeded == 7
    assert most == 2


async def test_slots_bound_what_runs_at_once(app: WorkerApp) -> None:
    running, most = 0, 0
    guard = threading.Lock()
    full = threading.Event()

    @app.task(name="threaded")
    def threaded() -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
            if running == 4:
                full.set()
        full.wait(WAIT_SECONDS)
        with guard:
            running -= 1

    await app.put(*(threaded.bind() for _ in range(40)))
    await app.drain(slots=4)
    assert most == 4


async def test_an_idle_worker_starts_what_is_enqueued_without_waiting_for_its_poll(app: WorkerApp) -> None:
    begun = app.listen("started")

    @app.task(name="plain")
    async def plain() -> None:
        return None

    async with app.worker(poll_every=WAIT_SECONDS - 5):
        for _ in range(5):
            [job_id] = await app.put(plain.bind())
            assert (await begun.next()).job_id == job_id
