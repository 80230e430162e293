"""The pool: the keeper's interface to runner processes. It sends each job to a runner that can start it now.

Created by the process worker (process_worker.py); everything happens on the keeper's loop. It spreads jobs over the
runners, runs isolated and suspect jobs in a dedicated runner, and turns a runner's exit into outcomes for its jobs. It
never starts processes (spawner.py does) and never checks timeouts (timeouts.py does).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from ... import events, logs
from ...clock import Clock
from ...context import Ended, Gone, Outcome, Stop, Unknown, interrupted, options_for, settlement_of
from ...options import TaskOptions
from ...records import Lease, Release
from ...retry import RetryPolicy
from ...worker_status import JOBS_SHOWN_MAX, MEMORY_STEP_BYTES, RunnerView
from ..keeper.batches import batch_plan
from ..keeper.chains import prefetches
from ..keeper.reports import Reports
from ..keeper.runners import Runners, Signals, limited_by
from . import protocol
from .exit_outcomes import outcomes_after_exit
from .launch import Launched
from .resource_limits import children_of
from .runner_process import AHEAD_MAX, RunnerProcess, Stage, ahead_by_time
from .spawner import Plan, RunnerSpawner
from .timeouts import TimeoutMonitor

END_WITHIN_SECONDS = 3.0
RUNNER_WITHIN_SECONDS = 30.0  # release a job that has waited this long for a dedicated runner
SUSPECT_PATIENCE_SECONDS = 2.0  # double the processes for suspect jobs each time they have waited this long
SUSPECT_DOUBLINGS_MAX = 2
RETRY_DECISION_WITHIN_SECONDS = 5.0  # apply a killed job's retry policy here if no runner has done so within this time
SHOWN_AFTER_SECONDS = 2.0  # show a job in the worker status if it has not begun for this long
AHEAD_PATIENCE_SECONDS = 0.25  # take back a job claimed ahead that has not begun within this time
LOST_GROUP_SECONDS = 0.25  # delay of a group's jobs while a lost attempt of one of them has not stopped
ESTIMATE_JOBS = 50  # the expected run time is a mean over about this many jobs


class Pool(Runners):
    """The `Runners` implementation with runner processes."""

    isolates = True
    in_processes = True

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        reports: Reports,
        signals: Signals,
        on_hello: Callable[[protocol.Hello], None] = lambda hello: None,
    ) -> None:
        super().__init__(signals)
        self._clock, self._reports = clock, reports
        self.spawner = RunnerSpawner(plan, self, clock)
        self.monitor = TimeoutMonitor(self, clock)
        self._on_hello = on_hello  # called with the hello of each shared runner that is ready
        self.facts: dict[str, protocol.TaskFacts] = {}  # by name and alias
        self.catch_all: protocol.TaskFacts | None = None  # for jobs of all other tasks
        self.timeouts: dict[str, float] = {}  # by task, for tasks that have one
        self._isolated_tasks: frozenset[str] = frozenset()  # isolated tasks
        self._listens: frozenset[str] = frozenset()
        self._waiting: deque[Lease] = deque()  # for a dedicated runner
        self._waits_since: dict[str, float] = {}  # by token
        self._lost: dict[str, RunnerProcess] = {}  # job id → runner in which a lost attempt is still running
        self._isolated_slots = IsolatedSlots()
        self._failed_by_kill: dict[str, _KilledJob] = {}  # by token: failed by a kill, retry policy not yet applied
        self._run_seconds: float | None = None  # mean run time of recent jobs; None: not known yet

    async def open(self, launched: Launched | None = None) -> protocol.Hello:
        """Start the guard and the first runner, unless they are launched already; the others follow."""
        hello = await self.spawner.open(launched)
        self.spawner.fill()
        return hello

    async def close(self) -> None:
        await self.spawner.close()

    # ------------------------------------------------------------------ called by the keeper

    def set_worker(self, worker: str) -> None:
        self.worker = worker
        for runner in self.spawner.runners.values():
            runner.send(protocol.Name(worker))

    def wanted(self, *names: str) -> bool:
        return any(name in self._listens for name in names)

    def room(self, free: int) -> int:
        return min(free, sum([runner.room for runner in self.spawner.runners.values() if not runner.dedicated]))

    def queued(self) -> int:
        queued = 0  # asked several times for each exchange
        for runner in self.spawner.runners.values():
            if len(runner.jobs) > runner.slots and not runner.dedicated and runner.stage <= Stage.READY:
                queued += runner.queued
        return queued

    def chaining(self) -> tuple[int, float | None]:
        return min((runner.chained_room for runner in self._ready()), default=0), self._run_seconds

    def ahead(self, now: int) -> int:
        runners = self._ready()
        shares = even_shares([runner.room for runner in runners], now)
        return sum(self._room_ahead(runner, share) for runner, share in zip(runners, shares, strict=True))

    def lasts(self) -> float:
        if not self.queued():  # nothing was claimed ahead: send outcomes immediately
            return 0.0
        seconds, now = self._run_seconds or 0.0, self._clock.steady()
        return min((runner.lasts(seconds, now) for runner in self._ready()), default=0.0)

    def sending(self) -> bool:
        ready = self._ready()
        return bool(ready) and all(runner.sending for runner in ready)

    def _ready(self) -> list[RunnerProcess]:
        return [one for one in self.spawner.runners.values() if one.stage is Stage.READY and not one.dedicated]

    def _room_ahead(self, runner: RunnerProcess, share: int) -> int:
        """How many more jobs may wait in a runner that gets `share` jobs to start immediately: none if it has slots
        left, because they would start, too."""
        if share != runner.room:
            return 0
        return runner.room_ahead(self._ahead_max(runner), self._run_seconds or 0.0)

    def _ahead_max(self, runner: RunnerProcess) -> int:
        """How many jobs may wait in a runner: the configured number, else estimated from recent run times."""
        fixed = self.spawner.plan.prefetch
        if fixed is not None:
            return min(fixed, AHEAD_MAX)
        return ahead_by_time(runner.slots, self._run_seconds, self.exchange_seconds)

    def give_back_queued(self) -> None:
        self.gathered.give_back()
        for runner in self.spawner.shared:
            if runner.waiting:
                self._end([Release(id=lease.id, token=lease.token) for lease in self.take_back(runner)])

    def check_queued(self, runner: RunnerProcess, now: float) -> None:
        """Jobs claimed ahead have waited too long: other runners may begin them sooner. Claim none ahead until shorter
        jobs have ended."""
        late = runner.unbegun(now - AHEAD_PATIENCE_SECONDS) if runner.queued else []
        if any(not self.follows(lease) for lease in late):
            self._run_seconds = max(self._run_seconds or 0.0, AHEAD_PATIENCE_SECONDS)
            self.reroute(self.take_back(runner))

    def take_back(self, runner: RunnerProcess) -> list[Lease]:
        """Take back what has not begun, except a job that waits for its own lost attempt to stop: elsewhere it would
        overlap with that."""
        return runner.take_back(keep=self._lost)

    def most_by_task(self) -> Mapping[str, int]:
        if not self._isolated_tasks:
            return {}
        return self._isolated_slots.distribute(self._free_dedicated(), sorted(self._isolated_tasks))

    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        return self._isolated_slots.may_be_more(most_by_task, (lease.task for lease in leases))

    def _free_dedicated(self) -> int:
        """How many more jobs could start alone: idle processes plus those that may still be started."""
        dedicated = [runner for runner in self.spawner.runners.values() if runner.dedicated]
        taken = sum(bool(runner.jobs) or runner.stage > Stage.READY for runner in dedicated)
        return max(0, self.spawner.plan.isolated - taken - len(self._waiting))

    def start(self, leases: Sequence[Lease], now: int) -> None:
        if not (self._isolated_tasks or self._lost or [lease for lease in leases if lease.suspect]):
            self._spread(leases, now)
            return
        shared: list[Lease] = []
        blocked = self._lost_groups()
        for lease in leases:
            if lease.chained:  # goes where the one before it went, or back
                if shared and shared[-1].group == lease.group and shared[-1].queue == lease.queue:
                    shared.append(lease)
                else:
                    self._end([Release(id=lease.id, token=lease.token)])
            elif lease.id in self._lost:  # must not overlap: that runner starts it once the old attempt has stopped
                self._follow(self._lost[lease.id], lease)
            elif (lease.queue, lease.group) in blocked:  # nor with a lost attempt of another job of its chain
                self._end([Release(id=lease.id, token=lease.token, delay=LOST_GROUP_SECONDS)])
            elif lease.suspect or lease.task in self._isolated_tasks:
                self._waiting.append(lease)
                self._waits_since[lease.token] = self._clock.steady()
            else:
                shared.append(lease)
        self._spread(shared, now)
        self.serve_waiting()

    def start_batch(self, leases: Sequence[Lease]) -> None:
        single = [lease for lease in leases if lease.id in self._lost]  # must not overlap: see `start`
        together = [lease for lease in leases if lease.id not in self._lost]
        runner = max(self._ready(), key=lambda one: (one.room, self._room_ahead(one, one.room)), default=None)
        fits = 0
        if runner is not None and together and (runner.room or self._room_ahead(runner, 0)):
            fits = runner.give_batch(together)
            self.monitor.expect(runner, together[:fits])
        for lease in single:
            self._follow(self._lost[lease.id], lease)
        self._end([Release(id=lease.id, token=lease.token) for lease in together[fits:]])

    def _lost_groups(self) -> set[tuple[str, str | None]]:
        """Groups in which a lost attempt of a chained job, or of one with jobs chained to it, is still running."""
        jobs = [job for runner in {*self._lost.values()} for job in runner.jobs.values() if job.lease.id in self._lost]
        return {(job.lease.queue, job.lease.group) for job in jobs if job.lease.chained}

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        for lease in self.gathered.withdraw(leases):
            runner = self._holder(lease.token)
            if runner is None:
                self._stop_waiting(lease)
                continue
            job = runner.jobs[lease.token]
            if not runner.dedicated and runner.take_back_one(job):
                self._end([Release(id=lease.id, token=lease.token)])
                continue
            job.stop_reason = max(job.stop_reason, reason)
            if reason is Stop.LOST:
                self._lost[lease.id] = runner
            runner.send(protocol.Halt([(lease.id, lease.token)], reason))
            self.monitor.stop_sent(runner, job)

    def stop_all(self, reason: Stop) -> None:
        self.spawner.barred = True
        self._give_back_waiting(self._waiting)
        self.give_back_queued()
        for runner in self.spawner.runners.values():
            for job in runner.jobs.values():
                job.stop_reason = max(job.stop_reason, reason)
            runner.send(protocol.HaltAll(reason))

    def allow_starts(self) -> None:
        self.spawner.barred = False
        for runner in self.spawner.runners.values():
            runner.send(protocol.Open())
        self.spawner.fill()

    def running(self) -> tuple[str, ...]:
        jobs = [job.lease.id for runner in self.spawner.runners.values() for job in runner.jobs.values()]
        return (*jobs, *(lease.id for lease in self._waiting))

    def deliver(self, seen: list[events.Event]) -> None:
        for runner in self.spawner.shared:
            if runner.stage is Stage.READY and not runner.blocked and runner.keeps_up():
                runner.send(protocol.Emit([(event.name, protocol.encode_part(event)) for event in seen]))
                return

    def log_line(self, lease: Lease, line: str) -> None:
        """Add a line to a job's log."""
        self._reports.line(lease, line)

    def runner_views(self) -> list[RunnerView]:
        """The state of each runner, for the worker status and probes."""
        return [
            RunnerView(
                pid=runner.pid,
                state=runner.stage.name.lower(),
                alone=runner.dedicated,
                slots=runner.slots,
                running=len(runner.jobs) - runner.waiting,
                ahead=runner.waiting,
                done=runner.done,
                memory_bytes=runner.memory // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES,
                responds=not runner.blocked,
                jobs=tuple(job.lease.id for job in islice(runner.jobs.values(), JOBS_SHOWN_MAX)),
            )
            for runner in self.spawner.runners.values()
        ]

    def status(self) -> bytes:
        return self.drawn(self.runner_views(), self.unbegun())

    async def stacks(self) -> list[tuple[str, str]]:
        """The stacks of all runners; a runner that is stuck in C code shows its Python stacks, too."""
        runners = [one for one in self.spawner.runners.values() if one.stage is not Stage.GONE]
        found = await asyncio.gather(*(self.monitor.stacks(one) for one in runners))
        return [(f"runner {one.pid}", text or "it did not answer") for one, text in zip(runners, found, strict=True)]

    def knows(self, task: str) -> bool:
        return task in self.facts or self.catch_all is not None

    def task_names(self) -> Iterable[str]:
        return self.facts

    def unbegun(self) -> list[str]:
        """Jobs held here that no runner has begun for a while, or whose retry policy has not been applied yet."""
        before = self._clock.steady() - SHOWN_AFTER_SECONDS
        found = [lease.id for runner in self.spawner.runners.values() for lease in runner.unbegun(before)]
        found += [lease.id for lease in self._waiting if self._waits_since.get(lease.token, before) < before]
        return found + [killed.lease.id for killed in self._failed_by_kill.values() if killed.since < before]

    async def watch_forever(self) -> None:
        await self.monitor.watch_forever()

    async def kill_rest(self) -> bool:
        """Kill the runners that did not stop. Once they are dead, their jobs are released at no cost."""
        for runner in list(self.spawner.runners.values()):
            if runner.jobs:
                self.spawner.kill(runner, jobs_not_to_blame=True)
        await self.spawner.until(lambda: not self.running(), END_WITHIN_SECONDS)
        return True

    def renewed(self, fence_at: float, margin: float) -> None:
        # Handlers are told to stop at fence_at; runners still alive a quarter of the margin later are killed.
        self.spawner.deadline(fence_at + margin / 4, fence_at + margin * 3 / 8)

    # ------------------------------------------------------------------ dispatch

    def _spread(self, leases: Sequence[Lease], now: int, avoid: Container[RunnerProcess] = ()) -> None:
        """Fill up to `now` free slots, evenly; what is left waits in the runners whose slots are all taken."""
        runners = [one for one in self._ready() if one not in avoid] if avoid else self._ready()
        starts = [place for place, lease in enumerate(leases) if not lease.chained]  # of chains; most have one lease
        shares = even_shares([runner.room for runner in runners], min(now, len(starts)))
        left = len(starts) - sum(shares)
        if left:
            rooms = [self._room_ahead(runner, share) for runner, share in zip(runners, shares, strict=True)]
            shares = [sum(pair) for pair in zip(shares, even_shares(rooms, left), strict=True)]
        starts.append(len(leases))
        dealt = 0
        for runner, share in zip(runners, shares, strict=True):
            if share > 0:
                batch = leases[starts[dealt] : starts[dealt + share]]
                runner.give(batch)
                self.monitor.expect(runner, batch)
                dealt += share
        if dealt < len(starts) - 1:  # a runner exited after they were claimed
            self._end([Release(id=lease.id, token=lease.token) for lease in leases[starts[dealt] :]])

    def serve_waiting(self) -> None:
        """Send waiting jobs to their dedicated runners, and start missing runners."""
        dedicated = [runner for runner in self.spawner.runners.values() if runner.dedicated]
        for runner in dedicated:
            if self._waiting and runner.room:
                lease = self._waiting.popleft()
                self._waits_since.pop(lease.token, None)
                if runner.output is not None:
                    runner.output.begin(partial(self._reports.line, lease))
                runner.give([lease])
                self.monitor.expect(runner, [lease])
        starting = sum(runner.stage is Stage.STARTING for runner in dedicated)
        room = self._dedicated_max() - len(dedicated)  # the rest wait unbegun: a shutdown releases them at no cost
        for _ in range(min(len(self._waiting) - starting, room)):
            self.spawner.start(dedicated=True)

    def _dedicated_max(self) -> int:
        """Maximum number of dedicated runners: more than planned while suspect jobs wait.

        After a store outage longer than the lease, every interrupted job is suspect. Queueing for a few processes
        would delay the last of them for minutes.
        """
        since = [self._waits_since[lease.token] for lease in self._waiting if lease.suspect]
        waited = self._clock.steady() - min(since) if since else 0.0
        return self.spawner.plan.isolated << min(SUSPECT_DOUBLINGS_MAX, int(waited / SUSPECT_PATIENCE_SECONDS))

    def _follow(self, runner: RunnerProcess, lease: Lease) -> None:
        if runner.has_spare_flag:
            runner.give([lease])
            self.monitor.expect(runner, [lease])
        else:
            self._end([Release(id=lease.id, token=lease.token)])

    def follows(self, lease: Lease) -> bool:
        """Whether this lease waits on purpose for a lost attempt of the same job to stop."""
        return lease.id in self._lost

    def reroute(self, leases: Sequence[Lease]) -> None:
        """Re-dispatch reclaimed jobs to a runner with room; release the rest, and those of chains and batches.

        Never to a runner that has not yet noticed that one of them was taken from it: with two copies under one token,
        the first would begin on the second's flag, and its end would be taken for the second's.
        """
        single = [lease for lease in leases if not lease.chained and lease.task not in self.batches.by_task]
        avoid = [one for one in self.spawner.shared if any(lease.token in one.taken for lease in single)]
        now = sum(runner.room for runner in self.spawner.shared if runner not in avoid)
        self._spread(single[:now], now, avoid)
        back = [*single[now:], *(lease for lease in leases if lease not in single)]
        self._end([Release(id=lease.id, token=lease.token) for lease in back])

    def _holder(self, token: str) -> RunnerProcess | None:
        return next((runner for runner in self.spawner.runners.values() if token in runner.jobs), None)

    def _stop_waiting(self, lease: Lease) -> None:
        for waiting in self._waiting:
            if waiting.token == lease.token:
                self._waiting.remove(waiting)
                self._waits_since.pop(lease.token, None)
                self._end([Release(id=lease.id, token=lease.token)])
                return

    def _end(self, batch: list[Ended]) -> None:
        if batch:
            self.signals.post(batch)

    # ------------------------------------------------------------------ callbacks of runners

    def on_ready(self, runner: RunnerProcess) -> None:
        hello = runner.hello
        if hello is not None and not runner.dedicated:
            self.facts = {name: task for task in hello.tasks for name in (task.name, *task.aliases)}
            self.timeouts = {name: task.timeout for name, task in self.facts.items() if task.timeout is not None}
            self.catch_all = next((task for task in hello.tasks if task.catch_all), None)
            self.catches_all = self.catch_all is not None
            self._isolated_tasks = frozenset(name for name, task in self.facts.items() if task.isolated)
            self._listens = frozenset(hello.listens)
            self.slots_from = hello.slots_from
            self.limited = limited_by(hello.declared)
            self.batches = batch_plan(task.batching for task in hello.tasks)
            self.group_prefetch = self.batches.unchained(prefetches(hello.declared.queues))
            self._on_hello(hello)
        runner.send(protocol.Name(self.worker))
        self._request_retry_decisions()
        if self._waiting:
            self.serve_waiting()
        self.signals.claim_again()
        self.signals.status_changed.set()

    def on_runner_frame(self, runner: RunnerProcess, frame: object) -> None:
        if isinstance(frame, protocol.Ended):
            self._ended(runner, frame)
        elif isinstance(frame, protocol.Reported):
            self._reported(runner, frame)
        elif isinstance(frame, protocol.Pong):
            runner.pong(frame)

    def _ended(self, runner: RunnerProcess, frame: protocol.Ended) -> None:
        if runner.output is not None:
            runner.output.end()
        batch: list[Ended] = []
        ends: tuple[Sequence[Ended], ...] = (
            frame.settlements,
            frame.with_jobs,
            frame.releases,
            [Gone(job_id, token) for job_id, token in frame.gone],
            [Unknown(job_id, token) for job_id, token in frame.unknown],
        )
        if frame.seconds and not runner.dedicated:
            known = 0.0 if self._run_seconds is None else self._run_seconds
            weight = 0 if self._run_seconds is None else ESTIMATE_JOBS
            self._run_seconds = (known * weight + frame.seconds) / (weight + max(1, len(frame.settlements)))
        for kind in ends:
            for end in kind:
                if runner.drop(end.token) is not None or self._failed_by_kill.pop(end.token, None) is not None:
                    batch.append(end)
        self._after(runner)
        if runner.room:
            self.signals.slot_free.set()
        self._end(batch)

    def _after(self, runner: RunnerProcess) -> None:
        """Follow-up after some of a runner's jobs have ended."""
        runner.changed.set()
        if runner.dedicated and runner.stage is Stage.READY and children_of(runner.pid):
            self.spawner.kill(runner, jobs_not_to_blame=True)  # its job is over: so are its child processes
        if self._lost:
            here = {job.lease.id for job in runner.jobs.values()}
            self._lost = {job: where for job, where in self._lost.items() if where is not runner or job in here}
        if runner.dedicated and self._waiting:
            self.serve_waiting()
        self.monitor.check_max_jobs(runner)

    def _reported(self, runner: RunnerProcess, frame: protocol.Reported) -> None:
        for report in frame.reports:
            job = runner.jobs.get(report.token)
            if job is None:
                continue
            if report.moved:
                self._reports.progress(job.lease, report.fraction, report.text)
            for line in report.lines:
                self._reports.line(job.lease, line)
            if report.slow_for:
                self._reports.slow_down(job.lease, report.slow_for)
            if report.settles:
                self._reports.settles_itself(job.lease)

    def on_exited(self, runner: RunnerProcess, wait_status: int, cause: int, expected: bool) -> None:
        if runner.output is not None:
            runner.output.end()
        fails = {name for name, task in self.facts.items() if task.exit_fails}
        outcomes = outcomes_after_exit(runner, wait_status, cause, self._clock.steady(), fails)
        if outcomes.crashed or not (expected or runner.hello is None):
            logs.runner_died(runner.pid, outcomes.how, outcomes.crashed)
        runner.jobs.clear()
        self._after(runner)
        for killed in self._failed_by_kill.values():
            killed.asked = None if killed.asked is runner else killed.asked
        now = self._clock.steady()
        self._failed_by_kill.update(
            (lease.token, _KilledJob(lease, outcome, now)) for lease, outcome in outcomes.failed_by_kill
        )
        self._end(outcomes.ended)
        self._request_retry_decisions()
        if self._waiting and runner.hello is not None and not self.spawner.closing:
            self.serve_waiting()
        self.signals.status_changed.set()

    def on_not_started(self, runner: RunnerProcess, again_in: float) -> None:
        """A runner failed to start: release jobs that wait for a dedicated one, as the next start may fail, too."""
        if runner.dedicated:
            self._give_back_waiting(self._waiting, delay=again_in)
        self._apply_retry_limits(list(self._failed_by_kill.values()))

    def unused(self) -> bool:
        """Whether no job is here, waits for a runner or for its retry policy, and all runners respond."""
        waits = self._waiting or self._failed_by_kill
        return not waits and not any(runner.jobs or runner.blocked for runner in self.spawner.runners.values())

    def check_waiting(self, now: float) -> None:
        """Bound every wait for a runner: release jobs that have waited too long, apply overdue retry policies here."""
        if self._waiting:
            self.serve_waiting()
            late = now - RUNNER_WITHIN_SECONDS
            overdue = [lease for lease in self._waiting if self._waits_since.get(lease.token, now) < late]
            if overdue:
                logs.waited_for_runner([lease.id for lease in overdue], RUNNER_WITHIN_SECONDS)
                self._give_back_waiting(overdue)
        if self._failed_by_kill:
            late = now - RETRY_DECISION_WITHIN_SECONDS
            self._apply_retry_limits([killed for killed in self._failed_by_kill.values() if killed.since < late])

    def _give_back_waiting(self, leases: Iterable[Lease], delay: float = 0.0) -> None:
        gone = {lease.token: lease for lease in leases}
        self._waiting = deque(lease for lease in self._waiting if lease.token not in gone)
        for token in gone:
            self._waits_since.pop(token, None)
        self._end([Release(id=lease.id, token=token, delay=delay) for token, lease in gone.items()])

    def _request_retry_decisions(self) -> None:
        """Have a runner apply the retry policy of killed jobs: only it has the task's code."""
        cases = [killed for killed in self._failed_by_kill.values() if killed.asked is None]
        if not cases:
            return
        if self.spawner.closing or self.spawner.barred:  # no runner will respond: release them at no cost
            self._failed_by_kill.clear()
            self._end([interrupted(killed.lease) for killed in cases])
            return
        ready = next(
            (runner for runner in self.spawner.shared if runner.stage is Stage.READY and not runner.blocked), None
        )
        if ready is not None:
            for killed in cases:
                killed.asked = ready
            ready.send(
                protocol.ApplyRetryPolicy([killed.lease for killed in cases], [killed.outcome for killed in cases])
            )

    def _apply_retry_limits(self, cases: Sequence[_KilledJob]) -> None:
        """No runner can apply the task's full policy: apply the part known here, its retry limit."""
        ended: list[Ended] = []
        for killed in cases:
            lease = killed.lease
            del self._failed_by_kill[lease.token]
            facts = self.facts.get(lease.task, self.catch_all)
            if facts is None:
                ended.append(interrupted(lease))
                continue
            logs.retry_limit_applied(lease.id, lease.task)
            policy = RetryPolicy(limit=facts.retries)
            options = TaskOptions(retry=policy, retain=facts.retain, on_timeout=facts.on_timeout)
            ended.append(settlement_of(lease, options_for(options, lease.options), killed.outcome, None))
        self._end(ended)


def even_shares(rooms: Sequence[int], number: int) -> list[int]:
    """Distribute `number` as evenly as the rooms allow; what does not fit is left over."""
    if len(rooms) == 1:
        return [min(rooms[0], number)]
    shares = [0] * len(rooms)
    by_room = sorted(range(len(rooms)), key=lambda place: rooms[place])  # the small ones first: the rest can take more
    for done, place in enumerate(by_room):
        shares[place] = min(rooms[place], -(-number // (len(rooms) - done)))
        number -= shares[place]
    return shares


class _KilledJob:
    """A job whose runner was killed because of it, and the runner asked to apply its retry policy."""

    __slots__ = ("asked", "lease", "outcome", "since")

    def __init__(self, lease: Lease, outcome: Outcome, since: float) -> None:
        self.lease, self.outcome, self.since = lease, outcome, since
        self.asked: RunnerProcess | None = None


class IsolatedSlots:
    """How many jobs of each isolated task a claim may return: the processes for isolated jobs are few and shared.

    No I/O, no clock. A claim can cap each task but not several tasks together, so the free processes are distributed
    among the isolated tasks. The sum never exceeds the free processes: claimed jobs start at once, and the rest stays
    in the store for other workers. The remainder rotates from claim to claim, so that no task starves.
    """

    def __init__(self) -> None:
        self._first = 0
        self._satisfied: set[str] = set()

    def distribute(self, free: int, tasks: Sequence[str]) -> dict[str, int]:
        """Per-task maximum for the next claim."""
        if not tasks:
            return {}
        each, odd = divmod(max(0, free), len(tasks))
        first, self._first = self._first % len(tasks), (self._first + odd) % len(tasks)
        return {task: each + ((number - first) % len(tasks) < odd) for number, task in enumerate(tasks)}

    def may_be_more(self, dealt: Mapping[str, int], claimed: Iterable[str]) -> bool:
        """Whether a second claim right now may return jobs that this one left because of the per-task maximum.

        `claimed` are the tasks of the claimed jobs. False if no process is left, or if every task has had its chance
        without using all of its share; a new round begins then.
        """
        if not dealt:
            return False
        taken = Counter(task for task in claimed if task in dealt)
        for task, most in dealt.items():
            if taken[task] < most:
                self._satisfied.add(task)
            elif most:
                self._satisfied.discard(task)
        more = taken.total() < sum(dealt.values()) and not self._satisfied.issuperset(dealt)
        if not more:
            self._satisfied.clear()
        return more
