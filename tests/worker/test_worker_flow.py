"""What holds a worker back: its own caps, rates, slow-downs; and that it wakes in time and never spins."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp, soon

from holdfast import Context, Snooze
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import ManualClock
from holdfast.errors import ConfigurationError
from holdfast.options import WorkerOptions
from holdfast.rates import Rate
from holdfast.records import JobQuery, QueueRule, TaskRule


class Together:
    """How many run at once, by name."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def run(self, name: str) -> None:
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        for _ in range(10):
            await asyncio.sleep(0)
        self.now[name] -= 1


async def test_a_worker_takes_no_more_of_a_task_than_its_cap(app: WorkerApp) -> None:
    together = Together()

    @app.task(name="pdf")
    async def pdf() -> None:
        await together.run("pdf")

    @app.task(name="mail")
    async def mail() -> None:
        await together.run("mail")

    await app.put(*(pdf.bind() for _ in range(10)), *(mail.bind() for _ in range(10)))
    drained = await app.drain(task_slots={"pdf": 2})
    assert drained.succeeded == 20
    assert together.most["pdf"] == 2
    assert together.most["mail"] > 2


async def test_a_cap_holds_although_another_worker_declared_the_task_without_one(app: WorkerApp) -> None:
    together = Together()

    @app.task(name="pdf")
    async def pdf() -> None:
        await together.run("pdf")

    faulty = app.break_store()
    worker = app.worker(task_slots={"pdf": 2}, drain=True)
    store = await app.store()

    async def register(*args: Any, **kwargs: Any) -> Any:
        answer = await faulty.__getattr__("register")(*args, **kwargs)
        await store.declare([], [TaskRule(name="pdf")])  # a moment after ours
        return answer

    faulty.register = register  # type: ignore[attr-defined]
    await app.put(*(pdf.bind() for _ in range(8)))
    drained = await worker.run(signals=False)
    assert drained.succeeded == 8
    assert together.most["pdf"] == 2
    assert faulty.calls.count("declare") == 2
    assert [job.attempts for job in await store.find(JobQuery())] == [1] * 8


async def test_a_worker_takes_no_more_of_a_group_than_its_cap(app: WorkerApp) -> None:
    together = Together()
    app.rules = [QueueRule(name="default", group_limit=5, group_order="relaxed")]

    @app.task(name="work", group=lambda who: who)
    async def work(who: str) -> None:
        await together.run(who)

    await app.drain()  # declares
    await app.put(*(work.bind(who) for who in ("ann", "bob") for _ in range(8)))
    assert (await app.drain(group_slots=2)).succeeded == 16
    assert together.most == {"ann": 2, "bob": 2}


async def test_a_worker_takes_only_its_configured_priorities(app: WorkerApp) -> None:
    seen: list[int] = []

    @app.task(name="work")
    async def work(priority: int) -> None:
        seen.append(priority)

    await app.put(*(work.options(priority=priority).bind(priority) for priority in (0, 5, 9, -3, 7)))
    drained = await app.drain(priority="5..8", slots=1)
    assert (seen, drained.left) == ([7, 5], 3)
    await app.drain(priority=(-100, 0), slots=1)
    await app.drain(priority=9, slots=1)
    assert seen == [7, 5, 0, -3, 9]


@pytest.mark.parametrize("wrong", ["", "a..b", "5..1", (1, 2, 3), 1.5, 101, "..-101", (None, 1), True])
def test_a_range_of_priorities_has_two_ends(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="priority="):
        WorkerOptions(priority=wrong)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("0..10", (0, 10)),
        ("-5 .. 5", (-5, 5)),
        ("1..", (1, 100)),
        ("..-1", (-100, -1)),
        ("..", (-100, 100)),
        ("5", (5, 5)),
    ],
)
def test_a_range_of_priorities_is_read_as_text(text: str, ends: tuple[int, int]) -> None:
    assert WorkerOptions(priority=text).priority == ends


async def test_a_strict_order_of_queues_serves_the_first_first(app: WorkerApp) -> None:
    seen: list[str] = []

    @app.task(name="work")
    async def work(queue: str) -> None:
        seen.append(queue)

    for queue in ("low", "high"):
        await app.put(*(work.using(queue=queue).bind(queue) for _ in range(5)))
    await app.drain(queues=["high", "low"], queue_order="strict", slots=1)
    assert seen == ["high"] * 5 + ["low"] * 5


async def test_a_drain_waits_for_rates_of_queues_tasks_and_groups(app: WorkerApp) -> None:
    fast = Rate(1, 0.05)
    app.rules = [
        QueueRule(name="queue", rate=fast),
        QueueRule(name="groups", group_rate=fast, group_order="relaxed", group_limit=9),
    ]

    @app.task(name="slow", rate="1/0.05s")
    async def slow() -> None: ...

    @app.task(name="plain")
    async def plain() -> None: ...

    await app.drain(queues=["queue", "groups"])  # declares
    await app.put(
        *(slow.bind() for _ in range(3)),
        *(plain.using(queue="queue").bind() for _ in range(3)),
        *(plain.using(queue="groups", group="g").bind() for _ in range(3)),
    )
    drained = await app.drain(queues=["default", "queue", "groups"])
    assert (drained.succeeded, drained.left) == (9, 0)


async def test_where_the_clock_stands_still_a_rate_is_not_waited_for() -> None:
    clock = ManualClock()
    shared = MemoryBackend(clock)
    app = WorkerApp(lambda: shared)
    app.rules = [QueueRule(name="default", rate=Rate(1, 60.0))]

    @app.task(name="plain")
    async def plain() -> None: ...

    await app.drain()
    await app.put(*(plain.bind() for _ in range(3)))
    assert (await app.drain()).left == 2
    clock.advance(61)
    assert (await app.drain()).left == 1


async def test_a_worker_held_back_by_a_rate_wakes_in_time_and_does_not_spin(app: WorkerApp) -> None:
    done = asyncio.Event()
    app.rules = [QueueRule(name="default", rate=Rate(1, 0.3))]
    faulty = app.break_store()

    @app.task(name="plain")
    async def plain(n: int) -> None:
        if n == 3:
            done.set()

    async with app.worker(poll_every=30.0, sweep_every=None):
        await app.put(*(plain.bind(n) for n in range(1, 4)))
        await soon(done)
    assert faulty.calls.count("exchange") < 40


async def test_a_handler_slows_its_queue_down(app: WorkerApp) -> None:
    told, slowed, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    faulty, loop = app.break_store(), asyncio.get_running_loop()

    async def slow_down(*args: Any) -> Any:
        answer = await faulty.__getattr__("slow_down")(*args)
        loop.call_soon_threadsafe(slowed.set)
        return answer

    faulty.slow_down = slow_down  # type: ignore[attr-defined]

    @app.task(name="call")
    async def call(ctx: Context) -> None:
        ctx.slow_down(60)
        told.set()
        await go.wait()

    async with app.worker():
        await app.put(call.bind())
        await soon(told)
        store = await app.store()
        await soon(slowed)  # told at once, not only when the job ends
        [queue] = await store.queues()
        assert queue.flow is not None
        assert 55 < queue.flow.shut_until - await store.clock() <= 60
        go.set()
    [blocked] = await app.put(call.bind())
    worker = app.worker()
    async with worker:
        assert (await app.job(blocked)).state == "ready"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_snooze_may_hold_its_whole_queue(app: WorkerApp, is_async: bool) -> None:
    seen: list[int] = []

    async def in_loop(n: int) -> None:
        seen.append(n)
        raise Snooze(60, queue=True)

    def in_thread(n: int) -> None:
        seen.append(n)
        raise Snooze(60, queue=True)

    task = app.task(name="call")(in_loop if is_async else in_thread)
    faulty = app.break_store()
    await app.put(*(task.bind(n) for n in range(5)))
    snoozed = asyncio.Event()

    async def exchange(settlements: Any, *rest: Any) -> Any:
        answer = await faulty.__getattr__("exchange")(settlements, *rest)
        if settlements:
            assert "slow_down" in faulty.calls  # before the slot was free again
            loop.call_soon_threadsafe(snoozed.set)
        return answer

    loop = asyncio.get_running_loop()
    faulty.exchange = exchange  # type: ignore[attr-defined]
    async with app.worker(slots=1):
        await soon(snoozed)
    assert seen == [0]
    store = await app.store()
    [queue] = await store.queues()
    assert queue.counts == {"ready": 4, "scheduled": 1}
