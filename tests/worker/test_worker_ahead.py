"""Jobs claimed ahead: they begin when a slot is free, never more at once than there are slots, and go back free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs
from tests.worker.worker_bench import WorkerApp

from holdfast.clock import SystemClock
from holdfast.context import Ended, Stop
from holdfast.lifecycle import Ending, Settlement
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, Exchanged, Lease, QueueRule, Release, TaskRule
from holdfast.worker.keeper import exchange_loop
from holdfast.worker.keeper.declare import Declared
from holdfast.worker.keeper.exchange_loop import CLAIM_AHEAD_MIN, ExchangeLoop
from holdfast.worker.keeper.lease_renewal import Ledger
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.keeper.runners import InProcessRunners, Limited, Signals, limited_by
from holdfast.worker.keeper.store_client import AdaptiveLimit, Halves, StoreClient
from holdfast.worker.processes import protocol, spawner
from holdfast.worker.processes.pool import AHEAD_PATIENCE_SECONDS, Pool, even_shares
from holdfast.worker.processes.runner_process import AHEAD_MAX, RunnerProcess, Stage, ahead_by_time
from holdfast.worker.runner import chains
from holdfast.worker.runner.attempt import Runner

SLOTS = 2


def lease(number: int, task: str) -> Lease:
    return Lease(f"j{number}", f"token {number}", number, task, "q", b"{}")


class Crowd:
    """How many handlers run, and ran at once at most."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.now = self.most = 0
        self.begun: list[str] = []

    @contextmanager
    def member(self, name: str) -> Iterator[None]:
        with self._changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.begun.append(name)
            self._changed.notify_all()
        yield
        with self._changed:
            self.now -= 1

    def wait_for_begun(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.begun) >= number, 60)

    def wait_for(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.now >= number, 60)


class Bench:
    """A runner with two slots, its tasks, and what it handed over."""

    def __init__(self, app: WorkerApp) -> None:
        self.app, self.crowd = app, Crowd()
        self.gate, self._gate = threading.Event(), asyncio.Event()
        self.first = threading.Event()
        self.ended: list[Ended] = []
        self.batches: list[int] = []  # how many were handed over at a time
        self._more = asyncio.Event()
        self.runner = Runner(
            find_handler=app._find_handler, hub=app._hub, slots=SLOTS, reports=Reports(), hand_over=self._hand_over
        )

        @app.task(name="coroutine")
        async def coroutine() -> None:
            with self.crowd.member("coroutine"):
                await asyncio.sleep(0)

        @app.task(name="waits")
        async def waits() -> None:
            with self.crowd.member("waits"):
                await self._gate.wait()

        @app.task(name="thread")
        def thread() -> None:
            with self.crowd.member("thread"):
                pass

        @app.task(name="blocks")
        def blocks() -> None:
            with self.crowd.member("blocks"):
                self.gate.wait(60)

        @app.task(name="first")
        def first() -> None:
            with self.crowd.member("first"):
                self.first.wait(60)

        @app.task(name="timed first", timeout=60, retry=0)
        def timed_first() -> None:
            with self.crowd.member("timed first"):
                self.first.wait(60)

        @app.task(name="brief", timeout=0.05, retry=0)
        def brief() -> None:
            with self.crowd.member("brief"):
                pass

    def _hand_over(self, batch: list[Ended]) -> None:
        self.ended += batch
        self.batches.append(len(batch))
        self._more.set()

    async def until(self, number: int) -> None:
        """Wait until this many have ended."""
        while len(self.ended) < number:
            self._more.clear()
            await self._more.wait()

    async def until_running(self, number: int) -> None:
        assert await asyncio.to_thread(self.crowd.wait_for, number)

    def open_gate(self) -> None:
        self.gate.set()
        self._gate.set()

    def start(self, *tasks: str) -> None:
        self.runner.start([lease(number, task) for number, task in enumerate(tasks)])

    def succeeded(self) -> int:
        return sum(isinstance(end, Settlement) and end.ending is Ending.SUCCEEDED for end in self.ended)

    def released(self) -> set[str]:
        return {end.id for end in self.ended if isinstance(end, Release)}


@pytest.mark.parametrize(
    "tasks",
    [["coroutine"] * 30, ["thread"] * 30, ["thread", "coroutine", "coroutine", "thread", "thread"] * 6],
    ids=["coroutines", "threads", "mixed"],
)
async def test_no_more_run_at_once_than_there_are_slots(memory_app: WorkerApp, tasks: list[str]) -> None:
    bench = Bench(memory_app)
    bench.start(*tasks)
    await bench.until(len(tasks))
    assert bench.succeeded() == len(tasks)
    assert bench.crowd.most <= SLOTS
    assert sorted(bench.crowd.begun) == sorted(tasks)
    bench.runner.close()


async def test_coroutines_begin_in_the_order_in_which_they_came(memory_app: WorkerApp) -> None:
    order: list[int] = []

    @memory_app.task(name="numbered")
    async def numbered(n: int) -> None:
        order.append(n)
        await asyncio.sleep(0)

    bench = Bench(memory_app)
    leases = [structs.replace(lease(n, "numbered"), args=b'{"n":%d}' % n) for n in range(20)]
    bench.runner.start(leases)
    await bench.until(20)
    assert order == list(range(20))


async def test_an_outcome_waits_for_those_of_its_turn_and_for_no_later_ones(memory_app: WorkerApp) -> None:
    bench, handed, loop = Bench(memory_app), list[int](), asyncio.get_running_loop()

    @memory_app.task(name="ends at once")
    async def ends_at_once() -> None:
        loop.call_soon(lambda: handed.append(len(bench.ended)))  # in the next turn, before what follows the handler

    bench.start("ends at once")
    await bench.until(1)
    await asyncio.sleep(0)
    assert handed == [1]
    bench.runner.start([lease(number, "ends at once") for number in (7, 8)])
    await bench.until(3)
    assert bench.batches == [1, 2]
    bench.runner.close()


@pytest.mark.parametrize("task", ["coroutine", "thread"])
@pytest.mark.parametrize("holder", ["waits", "blocks"])
async def test_at_a_fence_what_has_not_begun_goes_back_at_once(memory_app: WorkerApp, holder: str, task: str) -> None:
    bench = Bench(memory_app)
    bench.start(*[holder] * SLOTS, *[task] * 10)
    await bench.until_running(SLOTS)
    bench.runner.warn_all()
    bench.runner.stop_all(Stop.FENCED)
    await bench.until(10)
    assert bench.released() >= {f"j{number}" for number in range(SLOTS, SLOTS + 10)}
    bench.open_gate()
    await bench.until(SLOTS + 10)
    assert set(bench.crowd.begun) == {holder}
    bench.runner.close()


async def test_a_job_that_waits_can_be_told_to_stop_by_name(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.start("waits", "waits", "coroutine", "coroutine")
    await bench.until_running(SLOTS)
    bench.runner.stop([("j2", "token 2")], Stop.CANCELLED)
    await bench.until(1)
    assert bench.released() == {"j2"}
    bench.open_gate()
    await bench.until(4)
    assert bench.succeeded() == 3


async def test_a_timeout_counts_from_the_beginning_and_not_from_the_wait(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.start("blocks", "blocks", "brief")
    await bench.until_running(SLOTS)
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, bench.open_gate)  # much longer than its timeout
    await bench.until(3)
    assert bench.succeeded() == 3
    bench.runner.close()


async def test_a_listener_gets_starts_one_by_one(memory_app: WorkerApp) -> None:
    begun: list[str] = []
    seen = memory_app.listen("started")
    bench = Bench(memory_app)
    bench.start("blocks", "blocks", "thread")
    begun += [(await seen.next()).job_id for _ in range(SLOTS)]
    await bench.until_running(SLOTS)
    assert begun == ["j0", "j1"] and len(seen.seen) == SLOTS
    bench.open_gate()
    await bench.until(3)
    assert (await seen.next()).job_id == "j2"
    bench.runner.close()


# ---------------------------------------------------------------------- ends of threads, collected together


async def ended_unseen(app: WorkerApp, task: str) -> Bench:
    """A thread has ended this task and has its next job; the timer that collects such ends is still far away."""
    bench = Bench(app)
    bench.runner._lazy = True
    bench.start(task, "blocks", "blocks", "blocks")
    await bench.until_running(SLOTS)
    bench.first.set()
    assert await asyncio.to_thread(bench.crowd.wait_for_begun, 3)
    assert bench.ended == []
    return bench


async def finish(bench: Bench) -> None:
    bench.open_gate()
    await bench.until(4)
    assert bench.succeeded() == 4
    bench.runner.close()


async def test_ends_of_threads_that_have_their_next_job_are_collected_by_a_timer(memory_app: WorkerApp) -> None:
    bench = await ended_unseen(memory_app, "first")
    bench.runner._collect_by_timer()
    await bench.until(1)
    assert bench.succeeded() == 1
    await finish(bench)


async def test_an_end_wakes_the_loop_when_few_jobs_wait(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.runner._lazy = True
    bench.start(*["thread"] * 20)
    await bench.until(20)
    assert bench.succeeded() == 20


async def test_a_job_that_has_ended_unseen_is_settled_at_a_fence(memory_app: WorkerApp) -> None:
    bench = await ended_unseen(memory_app, "first")
    bench.runner.stop_all(Stop.FENCED)
    bench.runner._collect_by_timer()
    await bench.until(2)
    assert bench.succeeded() == 1 and len(bench.released()) == 1
    bench.open_gate()
    await bench.until(4)
    bench.runner.close()


async def test_a_job_that_has_ended_unseen_does_not_time_out(memory_app: WorkerApp) -> None:
    bench = await ended_unseen(memory_app, "timed first")
    run = bench.runner.runs["j0"]
    run.began -= 120  # twice its timeout
    bench.runner._overrun(run)
    bench.runner._collect_by_timer()
    await bench.until(1)
    assert bench.succeeded() == 1 and not run.context.cancelled
    await finish(bench)


async def test_a_coroutine_that_waits_for_a_slot_gets_it_as_soon_as_a_thread_has_ended(memory_app: WorkerApp) -> None:
    bench = Bench(memory_app)
    bench.start("waits", "thread", "coroutine", "thread", "coroutine")
    bench.runner._lazy = True
    await bench.until(4)
    assert bench.succeeded() == 4
    bench.open_gate()
    await bench.until(5)
    bench.runner.close()


async def test_an_end_that_the_next_job_of_a_chain_waits_for_wakes_the_loop(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "CHAIN_SECONDS_MAX", 600.0)
    bench = Bench(memory_app)
    bench.runner._lazy = True
    following = structs.replace(lease(9, "thread"), chained=True)
    bench.runner.start([lease(0, "first"), following, *(lease(n, "blocks") for n in (1, 2, 3))])
    await bench.until_running(SLOTS)
    bench.first.set()
    async with asyncio.timeout(60):
        await bench.until(1)
    assert bench.succeeded() == 1
    bench.open_gate()
    await bench.until(5)
    assert bench.succeeded() == 5
    bench.runner.close()


# ---------------------------------------------------------------------- the pool


@pytest.mark.parametrize(
    ("rooms", "number", "shares"),
    [
        ([40, 5], 45, [40, 5]),  # not an even share first, and the rest given back
        ([40, 5], 10, [5, 5]),
        ([5, 40], 20, [5, 15]),
        ([3, 3], 4, [2, 2]),
        ([1, 1], 9, [1, 1]),
        ([0, 0], 3, [0, 0]),
        ([], 3, []),
    ],
)
def test_jobs_are_dealt_out_as_evenly_as_the_rooms_allow(rooms: list[int], number: int, shares: list[int]) -> None:
    assert even_shares(rooms, number) == shares


class Nobody:
    def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, runner: RunnerProcess) -> None: ...


@contextmanager
def pool_of(runners: int, slots: int = 5, prefetch: int | None = None) -> Iterator[tuple[Pool, list[RunnerProcess]]]:
    plan = spawner.Plan(app="shop:app", runners=runners, slots=slots * runners, prefetch=prefetch)
    pool = Pool(plan, SystemClock(), Reports(), Signals())
    made: list[RunnerProcess] = []
    for tag in range(1, runners + 1):
        runner = pool.spawner.runners[tag] = RunnerProcess(Nobody(), tag, slots, dedicated=False)
        runner.handed_over()
        runner.stage = Stage.READY
        made.append(runner)
    try:
        yield pool, made
    finally:
        for runner in made:
            runner.close()


def begin(runner: RunnerProcess, number: int) -> None:
    begun_at(runner, number, 1.0)


def begun_at(runner: RunnerProcess, number: int, at: float) -> None:
    for job in list(runner.jobs.values())[:number]:
        assert runner.begin_flags.begin(job.flag, at, 1)


def many(number: int, first: int = 0) -> list[Lease]:
    return [lease(n, "t") for n in range(first, first + number)]


@pytest.mark.parametrize(
    ("prefetch", "seconds", "most"),
    [
        (None, None, 0),  # nothing is known yet
        (None, 1.0, 0),
        (None, 0.05, 2),
        (None, 0.02, 5),
        (None, 0.002, 50),
        (None, 0.00001, AHEAD_MAX),
        (0, 0.001, 0),
        (3, None, 3),
        (10_000, 1.0, AHEAD_MAX),
    ],
)
async def test_how_many_may_wait_follows_the_run_times(prefetch: int | None, seconds: float | None, most: int) -> None:
    with pool_of(2, prefetch=prefetch) as (pool, _):
        pool._run_seconds = seconds
        assert pool.ahead(10) == 2 * most
        assert pool.ahead(7) == 0  # a runner with a free slot would start it: more slots would be used than wanted
        assert pool.lasts() == 0.0


@pytest.mark.parametrize(
    ("run_seconds", "exchange_seconds", "most"),
    [
        (0.03, 0.002, 3),  # an exchange takes little beside it: only what begins within 20 ms
        (0.03, 0.004, 5),  # a slot would be idle for more than a tenth of the time: one for each
        (0.1, 0.02, 5),
        (0.11, 5.0, 0),  # however long exchanges take, a job must not wait that long
        (0.002, 0.05, 50),  # where several begin within 20 ms, there are no more
        (0.0051, 0.002, 20),  # of the jobs that run, half has passed on average: the last begins after 20 ms
        (None, 0.05, 0),
    ],
)
def test_where_exchanges_are_slow_each_slot_has_one_job_ahead(
    run_seconds: float | None, exchange_seconds: float, most: int
) -> None:
    assert ahead_by_time(5, run_seconds, exchange_seconds) == most


async def test_jobs_that_have_ended_without_a_report_leave_room_for_others_and_time() -> None:
    with pool_of(2, slots=1) as (pool, (one, other)):
        pool._run_seconds = 0.005
        one.give(many(5))
        other.give(many(5, first=5))
        assert pool.ahead(0) == 0 and pool.queued() == 8
        begun_at(one, 3, now := pool._clock.steady())  # so two have ended
        begun_at(other, 1, now)
        assert (one.waits(0.005), other.waits(0.005)) == (2, 4)
        assert pool.ahead(0) == 2 and pool.queued() == 8
        assert one.lasts(0.005, now) == pytest.approx(3 * 0.005)
        assert other.lasts(0.005, now + 0.002) == pytest.approx(5 * 0.005 - 0.002)
        assert other.lasts(0.005, now + 1.0) == pytest.approx(4 * 0.005)  # a long job tells nothing about the next
        assert 0.0 < pool.lasts() <= 3 * 0.005


async def test_very_short_jobs_wait_by_what_their_runner_reported() -> None:
    with pool_of(1, slots=1) as (pool, (runner,)):
        pool._run_seconds = 0.0005
        runner.give(many(3))
        begun_at(runner, 3, pool._clock.steady())
        assert runner.waits(0.0005) == 2
        assert pool.lasts() == pytest.approx(2 * 0.0005)


async def test_a_runner_with_a_free_slot_waits_for_nothing() -> None:
    with pool_of(2, slots=1) as (pool, (one, _)):
        pool._run_seconds = 0.005
        one.give(many(4))
        begun_at(one, 1, pool._clock.steady())
        assert pool.lasts() == 0.0


async def test_an_outcome_waits_for_no_other_where_nothing_was_claimed_ahead() -> None:
    with pool_of(1, slots=2) as (pool, (runner,)):
        pool._run_seconds = 5.0
        runner.give(many(2))
        begun_at(runner, 2, pool._clock.steady())
        assert runner.lasts(5.0, pool._clock.steady()) > 0.0
        assert pool.lasts() == 0.0


async def test_the_end_of_a_runners_last_job_ends_the_collecting_of_outcomes() -> None:
    with pool_of(1, slots=1) as (pool, (runner,)):
        jobs = many(2)
        runner.give(jobs)
        for job, free in zip(jobs, (False, True), strict=True):
            ended = Settlement(id=job.id, token=job.token, ending=Ending.SUCCEEDED)
            pool.on_runner_frame(runner, protocol.Ended([ended], [], [], [], 0.005))
            assert pool.signals.slot_free.is_set() is free


async def test_run_times_are_learned_from_what_ends() -> None:
    with pool_of(1) as (pool, [runner]):
        runner.give(many(5))
        ends = [Settlement(id=f"j{n}", token=f"token {n}", ending=Ending.SUCCEEDED) for n in range(5)]
        pool.on_runner_frame(runner, protocol.Ended(ends, [], [], [], 0.01))
        assert pool.ahead(5) == 50
        runner.give([lease(9, "t")])
        slow = [structs.replace(ends[0], id="j9", token=lease(9, "t").token)]
        pool.on_runner_frame(runner, protocol.Ended(slow, [], [], [], 60.0))
        assert pool.ahead(5) == 0


async def test_slots_are_filled_first_and_evenly_and_the_rest_waits() -> None:
    with pool_of(2, prefetch=8) as (pool, [first, second]):
        pool.start(many(16), now=10)
        assert (len(first.jobs), first.queued, len(second.jobs), second.queued) == (8, 3, 8, 3)
        assert pool.queued() == 6 and not pool.signals.ended
        pool.start(many(20, 100), now=0)
        assert (first.queued, second.queued) == (8, 8)
        assert len(pool.signals.ended) == 10  # more came than may wait: given back


async def test_what_was_taken_back_never_returns_to_a_runner_that_may_still_have_it() -> None:
    """There are two of it in that runner then, under one token: the first begins although it was taken back, and its
    end is taken for that of the second."""
    late = SystemClock().steady() + AHEAD_PATIENCE_SECONDS + 60.0
    with pool_of(1, prefetch=2) as (pool, [runner]):
        pool.start(many(7), now=5)
        begin(runner, 2)  # handlers that compute leave the other threads no time: slots are free that hold a job
        pool.check_queued(runner, late)
        assert runner.room == 3 and len(runner.jobs) == 2
        assert {end.id for end in pool.signals.ended} == {f"j{n}" for n in range(2, 7)}
    with pool_of(2, prefetch=2) as (pool, [first, second]):
        pool.start(many(14), now=10)
        begin(first, 2)
        begin(second, 5)
        for job in [*second.jobs.values()][:5]:
            second.drop(job.lease.token)
        pool.check_queued(first, late)
        assert not {*first.jobs} & {*first.taken}
        moved = {*second.jobs} & {*first.taken}
        assert len(moved) == 3 and len(pool.signals.ended) == 2
        second.blocked = True
        pool.reroute(second.take_back())
        assert not {*first.jobs} & {*first.taken}, "nor by a way round"


async def test_what_waits_goes_back_at_a_stop_a_fence_and_a_lost_lease() -> None:
    with pool_of(1, prefetch=8) as (pool, [runner]):
        pool.start(many(13), now=5)
        begin(runner, 5)
        lost = [job.lease for job in runner.jobs.values()][-1]
        pool.stop([lost], Stop.LOST)  # it never began: no handler has to be stopped, let alone killed
        assert [end.id for end in pool.signals.ended] == [lost.id] and not pool._lost
        pool.give_back_queued()
        assert len(pool.signals.ended) == 8 and len(runner.jobs) == 5
        pool.start(many(3, 100), now=0)  # their places there are still taken, and there are enough
        pool.stop_all(Stop.FENCED)
        assert len(pool.signals.ended) == 11 and len(runner.jobs) == 5


async def test_what_waits_behind_long_jobs_goes_elsewhere() -> None:
    with pool_of(2, prefetch=8) as (pool, [first, second]):
        pool.start(many(18), now=10)
        for runner in (first, second):
            begin(runner, 5)
        now = SystemClock().steady()
        pool.check_queued(first, now)
        assert first.queued == 4
        done = [job.lease for job in second.jobs.values()]
        for one in done:
            second.drop(one.token)
        pool.check_queued(first, now + AHEAD_PATIENCE_SECONDS + 1)
        assert first.queued == 0 and len(second.jobs) == 4 and not pool.signals.ended


@pytest.mark.parametrize("way", ["patience", "stop", "blocked", "killed", "replaced"])
async def test_a_job_whose_lost_attempt_has_not_stopped_stays_where_that_runs(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun by another runner or worker, it would overlap with it."""
    with pool_of(2, prefetch=8) as (pool, [first, second]):
        monkeypatch.setattr(pool.spawner, "spawn", lambda work: work.close())
        monkeypatch.setattr(pool.spawner, "fill", lambda: None)
        first.give(many(5))
        begin(first, 5)
        lost = first.jobs["token 0"].lease
        pool.stop([lost], Stop.LOST)
        again = structs.replace(lost, token=lease(100, "t").token, fence=100)
        pool.start([again, *many(2, 200)], now=3)
        assert set(second.jobs) == {"token 200", "token 201"} and again.token in first.jobs
        later = SystemClock().steady() + 5
        if way == "patience":
            pool.check_queued(first, later)
        elif way == "stop":
            pool.give_back_queued()
        elif way == "blocked":
            first.ping(later - 10)
            pool.monitor._check(first, later)
        elif way == "killed":
            pool.monitor._kill_runner(first)
        else:
            pool.monitor.replace(first, "restart")
        assert again.token in first.jobs and again.token not in second.jobs and not pool.signals.ended


async def test_limits_and_rates_of_the_code_are_known() -> None:
    declared = Declared(
        queues=(
            QueueRule(name="plain"),
            QueueRule(name="limited", limit=3),
            QueueRule(name="rated", rate=Rate(5, 1.0)),
            QueueRule(name="grouped", group_limit=2, group_order="relaxed"),
            QueueRule(name="groups rated", group_rate=Rate(5, 1.0)),
        ),
        tasks=(TaskRule(name="plain"), TaskRule(name="limited", limit=1), TaskRule(name="rated", rate=Rate(1, 1.0))),
    )
    queues = frozenset({"limited", "rated", "grouped", "groups rated"})
    assert limited_by(declared) == Limited(queues, frozenset({"limited", "rated"}))


# ---------------------------------------------------------------------- the claim


class Requests:
    """What the worker asked its store for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
        self.seen: list[ClaimRequest] = []
        asked: Callable[..., Any] = store.exchange

        async def exchange(settlements: Any, releases: Any, request: ClaimRequest | None, *more: Any) -> Exchanged:
            if request is not None:
                self.seen.append(request)
            answer: Exchanged = await asked(settlements, releases, request, *more)
            return answer

        monkeypatch.setattr(store, "exchange", exchange)


async def test_a_claim_asks_for_more_where_no_limit_counts_it(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcessRunners, "in_processes", True)
    monkeypatch.setattr(InProcessRunners, "ahead", lambda self, now: 30)
    limited = Limited(frozenset({"few"}), frozenset({"rare"}))
    monkeypatch.setattr("holdfast.worker.keeper.runners.Limited", lambda: limited)
    requests = Requests(monkeypatch, await memory_app.store())
    bench = Bench(memory_app)
    await memory_app.put(*[memory_app.tasks["coroutine"].bind() for _ in range(20)])
    await memory_app.drain(slots=SLOTS)
    assert bench.crowd.most <= SLOTS and len(bench.crowd.begun) == 20
    widest = max(requests.seen, key=lambda request: request.most)
    assert widest.most == SLOTS + 30
    assert widest.most_by_queue == {"few": SLOTS} and widest.most_by_task == {"rare": SLOTS}


async def test_one_claim_brings_many_jobs_to_a_worker_with_few_slots(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcessRunners, "in_processes", True)
    monkeypatch.setattr(InProcessRunners, "ahead", lambda self, now: 2 * AHEAD_MAX)
    requests = Requests(monkeypatch, await memory_app.store())
    Bench(memory_app)
    await memory_app.put(*[memory_app.tasks["coroutine"].bind() for _ in range(20)])
    await memory_app.drain(slots=SLOTS)
    assert max(request.most for request in requests.seen) == CLAIM_AHEAD_MIN


async def test_a_job_that_must_run_at_most_once_never_waits(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored as begun before it begins, it would be buried unrun if the worker died meanwhile."""
    waiting: list[int] = []

    @memory_app.task(name="once", max_stalls=0, retry=0)
    async def once() -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(InProcessRunners, "in_processes", True)
    monkeypatch.setattr(InProcessRunners, "ahead", lambda self, now: 30)
    start = Runner.start

    def watched(self: Runner, leases: Any) -> None:
        start(self, leases)
        waiting.append(len(self._queue))

    monkeypatch.setattr(Runner, "start", watched)
    jobs = await memory_app.put(*[once.bind() for _ in range(10)])
    drained = await memory_app.drain(slots=SLOTS)
    assert drained.succeeded == len(jobs) == 10
    assert waiting and set(waiting) == {0}


async def test_outcomes_are_collected_until_a_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_loop, "AHEAD_PACE_SECONDS", 60.0)
    loop = ExchangeLoop.__new__(ExchangeLoop)
    with pool_of(1, slots=1) as (pool, (runner,)):
        loop._runners, loop._signals, loop._exchanged_at = pool, pool.signals, pool._clock.steady()
        loop._store = cast("StoreClient", SimpleNamespace(clock=pool._clock))
        loop._ledger = cast("Ledger", SimpleNamespace(ended=lambda batch: None))
        pool._run_seconds = 30.0
        runner.give(many(2))
        collecting = asyncio.get_running_loop().create_task(loop._pace())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not collecting.done()
        pool.signals.slot_free.set()
        await asyncio.wait_for(collecting, 30.0)
        runner.drop(many(1)[0].token)
        runner.drop(many(2)[1].token)
        await loop._pace()  # a slot is free: not at all


async def test_a_slot_that_ends_the_pause_is_filled_by_the_exchange_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_loop, "AHEAD_PACE_SECONDS", 60.0)
    loop: Any = ExchangeLoop.__new__(ExchangeLoop)
    asked: list[tuple[int, int]] = []

    async def exchange(settlements: Any, releases: Any, most: int, ahead: int) -> None:
        asked.append((len(settlements), most))

    with pool_of(1, slots=1) as (pool, (runner,)):
        loop._runners, loop._signals, loop._exchanged_at = pool, pool.signals, pool._clock.steady()
        loop._store, loop._renewal = SimpleNamespace(clock=pool._clock), SimpleNamespace(fenced=False)
        loop._ledger, loop._jobs_limit, loop._start_most = Ledger(1, {}), AdaptiveLimit(200), 100
        loop._ahead_from, loop._seal_reported, loop._unheard, loop._halves = 0.0, False, False, Halves()
        loop._rotation, loop.exchange = SimpleNamespace(queues=("q",)), exchange
        pool._run_seconds = 30.0
        jobs = many(5)
        ends = [Settlement(id=job.id, token=job.token, ending=Ending.SUCCEEDED) for job in jobs]
        loop._ledger.add(jobs)
        runner.give(jobs)
        begun_at(runner, 1, pool._clock.steady())
        pool.on_runner_frame(runner, protocol.Ended(ends[:1], [], [], [], 30.0))
        step = asyncio.get_running_loop().create_task(loop.step())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not step.done(), "four jobs wait in the runner: outcomes are collected"
        pool.on_runner_frame(runner, protocol.Ended(ends[1:], [], [], [], 0.01))
        await asyncio.wait_for(step, 30.0)
    assert asked == [(5, 1)]
