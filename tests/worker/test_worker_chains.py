"""Group prefetch: jobs of a group that were leased together run one after the other, and go back if one does not
succeed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest
from msgspec import structs
from tests.worker.test_worker_ahead import begin, pool_of
from tests.worker.worker_bench import ATTENTIVE, WAIT_SECONDS, WorkerApp, soon

from holdfast.context import Context, Ended, Gone, Snooze, Stop
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.options import QueueOptions
from holdfast.records import Lease, QueueRule, Release
from holdfast.worker.embedded import Drained
from holdfast.worker.keeper.chains import CHAINED_MAX, Chains, in_order, lengths
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.processes import guard
from holdfast.worker.processes.exit_outcomes import outcomes_after_exit
from holdfast.worker.runner import chains as runner_chains
from holdfast.worker.runner.attempt import Runner
from holdfast.worker.runner.chains import Chain, RunnerChains


def chain(number: int, task: str = "t", group: str = "g", first: int = 0) -> list[Lease]:
    """So many leases of one group, chained."""
    return [
        Lease(f"j{n}", f"token {n}", n, task, "q", b'{"n":%d}' % n, group=group, chained=n > first)
        for n in range(first, first + number)
    ]


# ---------------------------------------------------------------------- bookkeeping


def test_a_chain_takes_one_slot_until_its_last_lease_has_ended() -> None:
    chains, leases = Chains(), [*chain(4), *chain(1, group="h", first=10)]
    chains.add(leases)
    assert chains.behind == 3
    assert [chains.is_behind(lease.token) for lease in leases] == [False, True, True, True, False]
    chains.drop("token 2")
    assert chains.after("token 0") == ["token 1", "token 3"]
    chains.drop("token 0")
    assert chains.behind == 1 and not chains.is_behind("token 1")
    for token in ("token 1", "token 3", "token 10", "unknown"):
        chains.drop(token)
    assert chains.behind == 0


def test_leases_are_put_behind_those_before_them_and_strays_are_found() -> None:
    one, two = chain(3), chain(2, group="h", first=10)
    loose = Lease("j20", "token 20", 20, "t", "q", b"{}")
    stray = chain(2, group="lost", first=30)[1]
    assert in_order([one[0], two[0], loose, one[1], stray, two[1], one[2]]) == ([*one, *two, loose], [stray])


@pytest.mark.parametrize(
    ("seconds", "capped", "share", "longest"),
    [
        (None, {}, None, {"a": 16, "b": 64}),
        (0.001, {}, None, {"a": 16, "b": 64}),
        (0.02, {}, None, {"a": 16, "b": 25}),
        (0.2, {}, None, {"a": 2, "b": 2}),
        (0.4, {}, None, {}),  # long jobs gain nothing
        (None, {"b": 3}, None, {"a": 16}),
        (None, {}, 5, {"a": 5, "b": 5}),
        (None, {}, 1, {}),
    ],
)
def test_how_long_chains_may_be(
    seconds: float | None, capped: dict[str, int], share: int | None, longest: dict[str, int]
) -> None:
    assert lengths({"a": 16, "b": 64}, seconds, capped, share) == longest


@pytest.mark.parametrize("options", [{"group_prefetch": 0}, {"group_prefetch": 257}, {"group_prefetch": True}])
def test_a_number_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="group_prefetch="):
        QueueOptions(name="q", **options)


def test_a_relaxed_queue_needs_none() -> None:
    with pytest.raises(ConfigurationError, match="relaxed"):
        QueueOptions(name="q", group_order="relaxed", group_limit=4, group_prefetch=2)
    assert QueueOptions(name="q", group_prefetch=8).rule() == QueueRule(name="q", group_prefetch=8)


# ---------------------------------------------------------------------- the runner


class Bench:
    """A runner with two slots, and what it handed over."""

    def __init__(self, app: WorkerApp) -> None:
        self.app, self.begun = app, list[int]()
        self.ended: list[Ended] = []
        self.batches = 0
        self._more = asyncio.Event()
        self.gate, self.thread_gate = asyncio.Event(), threading.Event()
        self.runner = Runner(
            find_handler=app._find_handler, hub=app._hub, slots=2, reports=Reports(), hand_over=self._hand_over
        )

        @app.task(name="coroutine")
        async def coroutine(n: int) -> None:
            self.begun.append(n)

        @app.task(name="thread")
        def thread(n: int) -> None:
            self.begun.append(n)

        @app.task(name="waits")
        async def waits(n: int) -> None:
            self.begun.append(n)
            await self.gate.wait()

        @app.task(name="fails", retry=3)
        async def fails(n: int) -> None:
            self.begun.append(n)
            raise ValueError(n)

        @app.task(name="snoozes")
        async def snoozes(n: int) -> None:
            self.begun.append(n)
            raise Snooze(1.0)

    def _hand_over(self, batch: list[Ended]) -> None:
        self.ended += batch
        self.batches += 1
        self._more.set()

    async def until(self, number: int) -> None:
        while len(self.ended) < number:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), WAIT_SECONDS)

    def succeeded(self) -> list[str]:
        return [end.id for end in self.ended if isinstance(end, Settlement) and end.ending is Ending.SUCCEEDED]

    def released(self) -> list[str]:
        return [end.id for end in self.ended if isinstance(end, Release)]


@pytest.mark.parametrize("task", ["coroutine", "thread"])
async def test_a_chain_runs_in_order_and_its_outcomes_travel_together(memory_app: WorkerApp, task: str) -> None:
    bench = Bench(memory_app)
    bench.runner.start(chain(200, task))  # more than the interpreter would let handlers recurse
    await bench.until(200)
    assert bench.begun == list(range(200))
    assert bench.succeeded() == [f"j{n}" for n in range(200)]
    assert bench.batches < 100
    bench.runner.close()


async def test_chains_of_several_groups_run_side_by_side_within_the_slots(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.runner.start([*chain(5, "coroutine"), *chain(5, "coroutine", "h", 10), *chain(5, "coroutine", "i", 20)])
    await bench.until(15)
    for first in (0, 10, 20):
        assert [n for n in bench.begun if first <= n < first + 10] == list(range(first, first + 5))


@pytest.mark.parametrize("task", ["fails", "snoozes", "unknown"])
async def test_the_rest_goes_back_when_one_does_not_succeed(memory_app: WorkerApp, task: str) -> None:
    bench = Bench(memory_app)
    leases = chain(5, "coroutine")
    leases[2] = structs.replace(leases[2], task=task)
    bench.runner.start(leases)
    await bench.until(5)
    assert bench.succeeded() == ["j0", "j1"]
    assert bench.released() == ["j3", "j4"]
    assert bench.begun == [0, 1, *([] if task == "unknown" else [2])]


async def test_what_has_not_begun_in_time_goes_back(memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_chains, "CHAIN_SECONDS_MAX", 0.01)
    bench = Bench(memory_app)
    bench.runner.start(chain(4, "waits"))
    await bench.until(3)
    assert bench.released() == ["j1", "j2", "j3"]
    bench.gate.set()
    await bench.until(4)
    assert bench.begun == [0] and bench.succeeded() == ["j0"]


async def test_a_job_in_a_chain_can_be_told_to_stop_and_those_behind_it_go_back(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.runner.start(chain(4, "waits"))
    bench.runner.stop([("j2", "token 2")], Stop.CANCELLED)
    await bench.until(3)
    assert bench.released() == ["j1", "j2", "j3"]
    bench.gate.set()
    await bench.until(4)


@pytest.mark.parametrize("way", ["fence", "stop", "lost"])
async def test_a_chain_goes_back_at_a_fence_a_stop_and_a_lost_lease(memory_app: WorkerApp, way: str) -> None:
    bench = Bench(memory_app)
    bench.runner.start(chain(4, "waits"))
    await asyncio.sleep(0)
    assert bench.begun == [0]
    if way == "fence":
        bench.runner.warn_all()
        bench.runner.stop_all(Stop.FENCED)
    elif way == "stop":
        bench.runner.cut_chains()
        bench.gate.set()
    else:
        bench.runner.stop([("j0", "token 0")], Stop.LOST)
    await bench.until(4)
    assert bench.begun == [0]
    assert set(bench.released()) >= {"j1", "j2", "j3"}
    assert way != "lost" or [end.id for end in bench.ended if isinstance(end, Gone)] == ["j0"]


# ---------------------------------------------------------------------- the pool


async def test_a_chain_goes_to_one_runner_and_takes_one_slot_there() -> None:
    with pool_of(2, slots=2) as (pool, [first, second]):
        pool.start([*chain(10), *chain(10, group="h", first=20), *chain(1, group="i", first=40)], now=4)
        assert [len(runner.jobs) for runner in (first, second)] == [20, 1]
        assert [runner.room for runner in (first, second)] == [0, 1]
        assert [runner.waiting for runner in (first, second)] == [18, 0]
        assert pool.queued() == 0 and not pool.signals.ended
        assert pool.chaining() == (CHAINED_MAX - 18, None)


async def test_the_flags_of_a_chain_are_free_again_when_its_jobs_have_ended() -> None:
    with pool_of(1) as (pool, [runner]):
        for round in range(300):
            leases = chain(10, first=10 * round)
            pool.start(leases, now=1)
            begin(runner, 3)
            pool.give_back_queued()
            for lease in leases:
                runner.drop(lease.token)
        assert (runner.room, runner.waiting, runner.chained_room) == (5, 0, CHAINED_MAX)


@pytest.mark.parametrize("way", ["stop", "blocked", "replaced"])
async def test_chained_jobs_that_are_taken_back_go_to_the_store_and_not_elsewhere(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun by another runner, they would overlap with the one before them."""
    with pool_of(2) as (pool, [first, second]):
        monkeypatch.setattr(pool.spawner, "spawn", lambda work: work.close())
        monkeypatch.setattr(pool.spawner, "fill", lambda: None)
        first.give(chain(5))
        begin(first, 2)
        if way == "stop":
            pool.give_back_queued()
        elif way == "blocked":
            now = pool._clock.steady()
            first.ping(now - 10)
            pool.monitor._check(first, now)
        else:
            pool.monitor.replace(first, "restart")
        assert [end.id for end in pool.signals.ended] == ["j2", "j3", "j4"]
        assert not second.jobs and len(first.jobs) == 2


async def test_when_a_runner_dies_the_job_that_ran_is_to_blame_and_the_others_go_back() -> None:
    with pool_of(1) as (_, [runner]):
        runner.give(chain(5))
        begin(runner, 3)
        outcomes = outcomes_after_exit(runner, 9, guard.GUARD_DIED, 2.0)
        kinds = {end.id: end.ending if isinstance(end, Settlement) else "released" for end in outcomes.ended}
        assert kinds == {"j0": "released", "j1": "released", "j2": Ending.STALLED, "j3": "released", "j4": "released"}
        assert [lease.id for lease, *_ in outcomes.crashed] == ["j2"]


async def test_a_group_waits_while_a_lost_attempt_of_a_chained_job_has_not_stopped() -> None:
    with pool_of(2) as (pool, [first, second]):
        first.give(chain(3))
        begin(first, 2)
        first.drop("token 0")
        pool.stop([first.jobs["token 1"].lease], Stop.LOST)
        again = [structs.replace(lease, token=f"again {lease.id}") for lease in chain(3)]
        pool.start(again, now=5)
        assert not second.jobs and len(first.jobs) == 2
        delays = {end.id: end.delay for end in pool.signals.ended if isinstance(end, Release)}
        assert set(delays) == {"j0", "j1", "j2"} and delays["j0"] > 0


# ---------------------------------------------------------------------- the whole worker


async def test_a_worker_runs_groups_in_chains_in_order_and_without_overlap(app: WorkerApp) -> None:
    app.rules = [QueueRule(name="default", group_prefetch=16)]
    ran: dict[str, list[int]] = defaultdict(list)
    running: dict[str, int] = defaultdict(int)
    overlaps: list[str] = []

    @app.task(name="step", group=lambda n: f"g{n % 7}")
    async def step(ctx: Context, n: int) -> None:
        assert ctx.group is not None
        running[ctx.group] += 1
        if running[ctx.group] > 1:
            overlaps.append(ctx.group)
        ran[ctx.group].append(n)
        if n % 5 == 0:
            await asyncio.sleep(0)
        running[ctx.group] -= 1

    await app.put(*(step.bind(n) for n in range(700)))
    assert await app.drain(slots=4) == Drained(succeeded=700, failed=0, left=0)
    assert not overlaps
    assert all(numbers == sorted(numbers) for numbers in ran.values())


async def test_a_job_that_fails_is_tried_again_before_those_behind_it(app: WorkerApp) -> None:
    app.rules = [QueueRule(name="default", group_prefetch=16)]
    ran: list[int] = []

    @app.task(name="step", group="g", retry=lambda failures, error: 0.0)
    async def step(n: int) -> None:
        ran.append(n)
        if n % 10 == 5 and ran.count(n) < 3:
            raise ValueError(n)

    await app.put(*(step.bind(n) for n in range(40)))
    drained = await app.drain(slots=4)
    assert (drained.succeeded, drained.failed) == (40, 8)
    assert ran == [n for n in range(40) for _ in range(3 if n % 10 == 5 else 1)]


async def test_replies_that_get_lost_change_nothing(app: WorkerApp) -> None:
    app.rules = [QueueRule(name="default", group_prefetch=8)]
    ran: list[int] = []

    @app.task(name="step", group="g")
    async def step(n: int) -> None:
        ran.append(n)

    await app.put(*(step.bind(n) for n in range(100)))
    faulty = app.break_store()
    faulty.every(3, "exchange", "lost")
    assert (await app.drain(slots=4)).succeeded == 100
    assert ran == list(range(100))


async def test_a_stop_gives_the_rest_of_a_chain_back_free_and_in_order(app: WorkerApp) -> None:
    app.rules = [QueueRule(name="default", group_prefetch=8)]
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.task(name="step", group="g")
    async def step(n: int) -> None:
        begun.set()
        await gate.wait()

    ids = await app.put(*(step.bind(n) for n in range(10)))
    worker = app.worker(slots=2, **ATTENTIVE)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    worker.request_stop()
    gate.set()
    await asyncio.wait_for(running, WAIT_SECONDS)
    jobs = [await app.job(job_id) for job_id in ids]
    assert jobs[0].state is State.SUCCEEDED
    left = [job for job in jobs if job.state is not State.SUCCEEDED]
    assert [job.state for job in left] == [State.READY, *[State.WAITING] * (len(left) - 1)]
    assert {(job.attempts, job.stalls, job.shared_stalls) for job in left} == {(0, 0, 0)}


async def test_cancelling_a_job_of_a_chain_cancels_it_and_not_those_behind_it(
    app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.rules = [QueueRule(name="default", group_prefetch=8)]
    begun, gate, cut = asyncio.Event(), asyncio.Event(), RunnerChains.cut

    def cut_and_go_on(runner: RunnerChains, chain: Chain) -> None:
        cut(runner, chain)
        gate.set()

    monkeypatch.setattr(runner_chains, "CHAIN_SECONDS_MAX", 1000.0)
    monkeypatch.setattr(RunnerChains, "cut", cut_and_go_on)
    ran: list[int] = []

    @app.task(name="step", group="g")
    async def step(n: int) -> None:
        ran.append(n)
        begun.set()
        await gate.wait()

    ids = await app.put(*(step.bind(n) for n in range(5)))
    running = asyncio.create_task(app.drain(slots=2, **ATTENTIVE))
    await soon(begun)
    store = await app.store()
    await store.cancel(ids[2])
    await asyncio.wait_for(running, WAIT_SECONDS)
    assert ran == [0, 1, 3, 4]
    assert (await app.job(ids[2])).state is State.CANCELLED
