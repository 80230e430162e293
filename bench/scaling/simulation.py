"""Simulates keepers that exchange outcomes for leases with a store, event by event, from measured costs.

Used by `bench/scale simulate`, by the page and by the tests. Deterministic by seed. A keeper has one exchange in flight
at a time, settles in it what has ended meanwhile and asks for as many jobs as it has free slots, up to the bound of a
claim: so the size of an exchange is not an input, it is a result.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from .fits import quantile
from .planning import Outcome, Plan
from .stations import Cores, Disk, Process, StoreHandle, Timeline, Usage

STRIPES = 1024  # of the group locks on PostgreSQL
CLAIM_MIN, CLAIM_SHARE = 200, 2  # a claim brings at most 200 jobs, or half of the slots if these are more
PORTION = 200  # jobs that a claim asks of one shard; as many shards as that takes are asked, in turn
AHEAD_SECONDS = 0.02  # how long jobs claimed ahead last
AHEAD_LEFT_SECONDS = 0.0075  # the next exchange comes when this much of it is left
CHORES = 500  # after this many jobs, the store enqueues and prunes as many


@dataclass(slots=True)
class Job:
    group: int | None = None
    shard: int = 0
    arrived: float = 0.0
    leased: float = 0.0


@dataclass
class Runner:
    """A runner process, and what has ended in it since its last report to its keeper."""

    process: Process
    ended: list[Job] = field(default_factory=list)
    telling: bool = False


@dataclass
class Keeper:
    """A worker: its processes, its free slots, its runners' reports, and what has ended and is not settled yet."""

    process: Process
    runners: list[Runner]
    free: int  # slots, and room for jobs claimed ahead
    running: int = 0  # jobs that wait for others
    ahead: deque[tuple[Runner, Job]] = field(default_factory=deque)
    paced_until: float = 0.0
    pausing: bool = False
    told: list[Job] = field(default_factory=list)
    reading: bool = False
    ended: list[Job] = field(default_factory=list)
    exchanging: bool = False
    dry: bool = False  # the last claim brought fewer jobs than it asked for
    shard: int = 0  # whose turn it is


@dataclass
class Exchange:
    """What one call sends to one shard and asks of it."""

    shard: int
    node: int
    settled: list[Job]
    most: int
    heard: Callable[[list[Job]], None]
    claimed: list[Job] = field(default_factory=list)
    names: set[object] = field(default_factory=set)  # of the locks it holds


class Simulation:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.costs = plan, plan.costs
        self.time = Timeline()
        self.random = random.Random(plan.seed)
        self.gate = StoreHandle(self.time)
        self.disks = [Disk(self.time, self._sync_seconds) for _ in range(plan.nodes)]
        self.machine = Cores(self.time, plan.machine, plan.speed) if plan.machine else None
        threads = plan.costs.threads or plan.cores
        self.nodes = [Process(self.time, self._cores(plan.cores), threads) for _ in range(plan.nodes)]
        self.placing = plan.placing or tuple(shard % plan.nodes for shard in range(plan.shards))
        self._scarce = bool(plan.groups or plan.offered)  # then shards may have fewer jobs than they are asked for
        ahead = plan.slots * AHEAD_SECONDS / plan.handler if plan.handler and not self._scarce else 0.0
        self._ahead_most = min(plan.slots, round(ahead))
        self.keepers = [self._keeper() for _ in range(plan.workers)]
        self.free_groups = [deque(range(shard, plan.groups, plan.shards)) for shard in range(plan.shards)]
        self.arrived: deque[float] = deque()
        self.done = self.calls = 0
        self.taken = 0  # rows of uncommitted claims
        self.chores_due = [0] * plan.nodes
        self.latencies: list[float] = []
        self.held = Usage(self.time, 1)
        self.held_seconds = 0.0

    def _cores(self, number: int) -> Cores:
        return self.machine or Cores(self.time, number)

    def _keeper(self) -> Keeper:
        runners = [Runner(Process(self.time, self._cores(1))) for _ in range(self.plan.runners)]
        return Keeper(Process(self.time, self._cores(1)), runners, self.plan.slots + self._ahead_most)

    def _sync_seconds(self) -> float:
        return self.costs.sync * self.random.uniform(0.8, 1.2)

    # ------------------------------------------------------------------ the whole

    def run(self) -> Outcome:
        plan = self.plan
        for keeper in self.keepers:  # they do not start at the same moment
            self.time.after(self.random.uniform(0, 0.01), partial(self._look, keeper))
        if plan.offered:
            self._expect_arrival()
        self.time.run(plan.warm_up)
        self.done = self.calls = 0
        self.held_seconds = 0.0
        self.latencies.clear()
        for usage in (self.held, *(one for alike in self._usages().values() for one in alike)):
            usage.begin_anew()
        self.time.run(plan.warm_up + plan.seconds)
        return Outcome(
            jobs_per_second=self.done / plan.seconds,
            jobs_per_call=self.done / self.calls if self.calls else 0.0,
            latency_p50=quantile(self.latencies, 0.5),
            latency_p99=quantile(self.latencies, 0.99),
            held_mean=self.held.mean,
            held_seconds=self.held_seconds / self.done if self.done else 0.0,
            used={part: max(one.share for one in alike) for part, alike in self._usages().items()},
        )

    def _usages(self) -> dict[str, list[Usage]]:
        found = {
            "store": [node.usage for node in self.nodes],
            "keeper": [keeper.process.usage for keeper in self.keepers],
            "runner": [runner.process.usage for keeper in self.keepers for runner in keeper.runners],
        }
        if self.costs.sync:
            found["disk"] = [disk.usage for disk in self.disks]
        if self.costs.one_writer or self.costs.group_locks or self.plan.limited:
            found["turns"] = [self.gate.usage]
        if self.machine:
            found["machine"] = [self.machine.usage]
        return found

    # ------------------------------------------------------------------ jobs that come in one by one

    def _expect_arrival(self) -> None:
        assert self.plan.offered
        self.time.after(self.random.expovariate(self.plan.offered), self._arrive)

    def _arrive(self) -> None:
        """A producer's call: the store stores the job and, once that is committed, wakes idle keepers."""
        began, node = self.time.now, self.random.choice(self.placing)
        names = {"file"} if self.costs.one_writer else set()

        def commit() -> None:
            if self.costs.sync:
                self.disks[node].sync(stored)
            else:
                stored()

        def stored() -> None:
            self.gate.leave(names)
            self.arrived.append(began)
            self._wake()

        def serve() -> None:
            self.nodes[node].work(self.costs.enqueue, commit)

        self.time.after(self.plan.rtt / 2, lambda: self.gate.enter(names, serve))
        self._expect_arrival()

    def _wake(self) -> None:
        for keeper in self.keepers:
            if keeper.dry:
                keeper.dry = False
                self.time.after(self.plan.rtt / 2, partial(self._look, keeper))

    # ------------------------------------------------------------------ a keeper

    def _look(self, keeper: Keeper) -> None:
        """Send an exchange if there is something to settle or a slot worth asking for."""
        if keeper.exchanging or not (keeper.ended or (keeper.free and not keeper.dry)):
            return
        if keeper.ahead and keeper.paced_until > self.time.now:
            if not keeper.pausing:
                keeper.pausing = True
                self.time.after(keeper.paced_until - self.time.now, partial(self._go_on, keeper))
            return
        keeper.paced_until = self.time.now + AHEAD_SECONDS - AHEAD_LEFT_SECONDS
        keeper.exchanging = True
        ended, keeper.ended = keeper.ended, []
        most = min(keeper.free, max(CLAIM_MIN, self.plan.slots // CLAIM_SHARE))
        answers: list[list[Job]] = []

        def heard(jobs: list[Job]) -> None:
            answers.append(jobs)
            if len(answers) == len(parts):
                self._heard(keeper, most, [job for jobs in answers for job in jobs])

        def send() -> None:
            for part in parts:
                self.time.after(self.plan.rtt / 2, partial(self._exchange, part))

        parts = self._parts(keeper, ended, most, heard)
        keeper.process.work(self.costs.keeper.call * len(parts) + self.costs.keeper.job / 2 * len(ended), send)

    def _go_on(self, keeper: Keeper) -> None:
        keeper.pausing = False
        self._look(keeper)

    def _parts(self, keeper: Keeper, ended: list[Job], most: int, heard: Callable[[list[Job]], None]) -> list[Exchange]:
        """Which shard gets which outcomes, and how many jobs are asked of which: of a few, in large portions."""
        shards = self.plan.shards
        settled: list[list[Job]] = [[] for _ in range(shards)]
        for job in ended:
            settled[job.shard].append(job)
        few = shards if self._scarce else min(shards, max(1, -(-most // PORTION)))
        each, more = divmod(most, few)
        wanted = [0] * shards
        for place in range(few):
            wanted[(keeper.shard + place) % shards] = each + (place < more)
        keeper.shard = (keeper.shard + few) % shards
        return [
            Exchange(shard, self.placing[shard], settled[shard], wanted[shard], heard)
            for shard in range(shards)
            if settled[shard] or wanted[shard]
        ]

    def _heard(self, keeper: Keeper, most: int, jobs: list[Job]) -> None:
        keeper.exchanging = False
        keeper.free -= len(jobs)
        keeper.dry = len(jobs) < most
        if jobs:
            keeper.process.work(self.costs.keeper.job / 2 * len(jobs), partial(self._start, keeper, jobs))
        self._look(keeper)

    def _start(self, keeper: Keeper, jobs: list[Job]) -> None:
        """Divide the jobs among the runners; each gets its share as a whole."""
        for number, runner in enumerate(keeper.runners):
            share = jobs[number :: len(keeper.runners)]
            if share:
                runner.process.work(self.costs.runner * len(share), partial(self._ran, keeper, runner, share))

    def _ran(self, keeper: Keeper, runner: Runner, jobs: list[Job]) -> None:
        if self.plan.offered:
            self.latencies += [self.time.now - job.arrived for job in jobs]
        if not self.plan.handler:
            self._ended(keeper, runner, jobs)
            return
        for job in jobs:
            if keeper.running < self.plan.slots:
                self._begin(keeper, runner, job)
            else:
                keeper.ahead.append((runner, job))

    def _begin(self, keeper: Keeper, runner: Runner, job: Job) -> None:
        """A job that waits for others; when it ends, the next one that was claimed ahead begins at once."""

        def end() -> None:
            keeper.running -= 1
            if keeper.ahead:
                self._begin(keeper, *keeper.ahead.popleft())
            self._ended(keeper, runner, [job])

        keeper.running += 1
        self.time.after(self.random.expovariate(1 / self.plan.handler), end)

    def _ended(self, keeper: Keeper, runner: Runner, jobs: list[Job]) -> None:
        """Handlers end. What ends while the runner is busy is reported together, in one frame."""
        runner.ended += jobs
        if not runner.telling:
            runner.telling = True
            runner.process.work(self.costs.runner_frame, partial(self._tell, keeper, runner))

    def _tell(self, keeper: Keeper, runner: Runner) -> None:
        runner.telling = False
        keeper.told += runner.ended
        runner.ended = []
        if not keeper.reading:
            keeper.reading = True
            keeper.process.work(self.costs.keeper_frame, partial(self._read, keeper))

    def _read(self, keeper: Keeper) -> None:
        keeper.reading = False
        keeper.ended += keeper.told
        keeper.free += len(keeper.told)
        keeper.told = []
        self._look(keeper)

    # ------------------------------------------------------------------ the store

    def _exchange(self, exchange: Exchange) -> None:
        if self.costs.one_writer:
            exchange.names.add("file")
        if self.plan.limited:
            exchange.names.add("limit")
        if self.costs.group_locks:
            exchange.names |= {job.group % STRIPES for job in exchange.settled if job.group is not None}
        self.gate.enter(exchange.names, partial(self._serve, exchange))

    def _serve(self, exchange: Exchange) -> None:
        if self.plan.groups:  # when a group's job ends, its next one can be claimed in the same step
            self.free_groups[exchange.shard].extend(job.group for job in exchange.settled if job.group is not None)
        exchange.claimed = self._claim(exchange)
        line = self.costs.grouped if self.plan.groups else self.costs.exchange
        jobs = (len(exchange.settled) + len(exchange.claimed)) / 2
        seconds = line.at(jobs) + self.costs.rival * self.taken
        self.nodes[exchange.node].work(seconds, partial(self._commit, exchange))

    def _claim(self, exchange: Exchange) -> list[Job]:
        if self.plan.groups:
            free = self.free_groups[exchange.shard]
            return [Job(group=free.popleft(), shard=exchange.shard) for _ in range(min(exchange.most, len(free)))]
        if self.plan.offered is None:
            return [Job(shard=exchange.shard) for _ in range(exchange.most)]
        number = min(exchange.most, len(self.arrived))
        return [Job(shard=exchange.shard, arrived=self.arrived.popleft()) for _ in range(number)]

    def _commit(self, exchange: Exchange) -> None:
        self.taken += len(exchange.claimed)  # until the commit, other claims have to skip these rows
        if self.costs.sync:
            self.disks[exchange.node].sync(partial(self._committed, exchange))
        else:
            self._committed(exchange)

    def _committed(self, exchange: Exchange) -> None:
        now, settled, claimed = self.time.now, exchange.settled, exchange.claimed
        self.gate.leave(exchange.names)
        self.taken -= len(claimed)
        self.calls += 1
        self.done += len(settled)
        self.held.change(len(claimed) - len(settled))
        for job in claimed:
            job.leased = now
        for job in settled:
            self.held_seconds += now - job.leased
        self.time.after(self.plan.rtt / 2, partial(exchange.heard, claimed))
        if self.plan.groups and settled:
            self._wake()
        if self.plan.sustained and self.plan.offered is None:
            self._do_chores(exchange.node, len(settled))

    def _do_chores(self, node: int, settled: int) -> None:
        """As many jobs are enqueued and pruned as are run, in separate calls."""
        self.chores_due[node] += settled
        while self.chores_due[node] >= CHORES:
            self.chores_due[node] -= CHORES
            names = {"file"} if self.costs.one_writer else set()

            def commit(names: set[str] = names) -> None:
                def stored() -> None:
                    self.gate.leave(names)

                if self.costs.sync:
                    self.disks[node].sync(stored)
                else:
                    stored()

            def serve(commit: Callable[[], None] = commit) -> None:
                self.nodes[node].work(self.costs.chores * CHORES, commit)

            self.gate.enter(names, serve)


def simulate(plan: Plan) -> Outcome:
    """Run it."""
    return Simulation(plan).run()
