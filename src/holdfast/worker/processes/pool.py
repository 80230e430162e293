"""The pool: the keeper's interface to runner processes. It sends each job to a runner that can start it now.

Created by the process worker (supervisor.py); everything happens on the keeper's loop. It spreads jobs over the
runners, runs isolated and suspect jobs in a dedicated runner, and turns a runner's exit into outcomes for its jobs. It
never starts processes (spawner.py does) and never checks timeouts (monitor.py does).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from ... import events, logs
from ...clock import Clock
from ...lifecycle import Outcome
from ...options import TaskOptions
from ...records import Lease, Release
from ...retry import RetryPolicy
from ...worker_status import JOBS_SHOWN_MAX, MEMORY_STEP_BYTES, RunnerView, draw
from ..keeper.reports import Reports
from ..keeper.runners import Runners
from ..runner.attempt import Ended, Gone, Stop, Unknown, interrupted, settlement_of
from . import protocol
from .crash_outcomes import outcomes_after_exit
from .isolated_slots import IsolatedSlots
from .monitor import Monitor
from .resource_limits import children_of
from .runner_process import RunnerProcess, Stage
from .spawner import Plan, RunnerSpawner

END_WITHIN_SECONDS = 3.0
RUNNER_WITHIN_SECONDS = 30.0  # release a job that has waited this long for a dedicated runner
SUSPECT_PATIENCE_SECONDS = 2.0  # double the processes for suspect jobs each time they have waited this long
SUSPECT_DOUBLINGS_MAX = 2
JUDGED_WITHIN_SECONDS = 5.0  # apply a killed job's retry policy here if no runner has done so within this time
SHOWN_AFTER_SECONDS = 2.0  # show a job in the worker status if it has not begun for this long


class Pool(Runners):
    """The `Runners` implementation with runner processes."""

    isolates = True
    apart = True

    def __init__(self, plan: Plan, clock: Clock, reports: Reports) -> None:
        super().__init__()
        self._clock, self._reports = clock, reports
        self.staff = RunnerSpawner(plan, self, clock)
        self.overseer = Monitor(self, clock)
        self.on_hello: Callable[[protocol.Hello], None] = lambda hello: None
        self.facts: dict[str, protocol.TaskFacts] = {}  # by name and alias
        self.timeouts: dict[str, float] = {}  # by task, for tasks that have one
        self._alone: frozenset[str] = frozenset()  # isolated tasks
        self._listens: frozenset[str] = frozenset()
        self._waiting: deque[Lease] = deque()  # for a dedicated runner
        self._waits_since: dict[str, float] = {}  # by token
        self._lost: dict[str, RunnerProcess] = {}  # job id → runner in which a lost attempt is still running
        self._isolated = IsolatedSlots()
        self._charged: dict[str, _Charge] = {}  # by token: failed by a kill, retry policy not yet applied

    async def open(self) -> protocol.Hello:
        """Start the guard and the first runner; the others follow."""
        hello = await self.staff.open()
        self.staff.fill()
        return hello

    async def close(self) -> None:
        await self.staff.close()

    # ------------------------------------------------------------------ called by the keeper

    def name(self, worker: str) -> None:
        self.worker = worker
        for remote in self.staff.remotes.values():
            remote.send(protocol.Name(worker))

    def wanted(self, *names: str) -> bool:
        return any(name in self._listens for name in names)

    def room(self, free: int) -> int:
        return min(free, sum(remote.room for remote in self.staff.shared))

    def most_by_task(self) -> Mapping[str, int]:
        return self._isolated.deal(self._free_alone(), sorted(self._alone))

    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        return self._isolated.may_be_more(most_by_task, (lease.task for lease in leases))

    def _free_alone(self) -> int:
        """How many more jobs could start alone: idle processes plus those that may still be started."""
        taken = sum(bool(one.held) or one.stage > Stage.READY for one in self.staff.remotes.values() if one.solo)
        return max(0, self.staff.plan.isolated - taken - len(self._waiting))

    def start(self, leases: Sequence[Lease]) -> None:
        if not (self._alone or self._lost or [lease for lease in leases if lease.suspect]):
            self._spread(leases)
            return
        shared: list[Lease] = []
        for lease in leases:
            if lease.id in self._lost:  # must not overlap: that runner starts it once the old attempt has stopped
                self._follow(self._lost[lease.id], lease)
            elif lease.suspect or lease.task in self._alone:
                self._waiting.append(lease)
                self._waits_since[lease.token] = self._clock.steady()
            else:
                shared.append(lease)
        self._spread(shared)
        self.serve_waiting()

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        for lease in leases:
            remote = self._holder(lease.token)
            if remote is None:
                self._stop_waiting(lease)
                continue
            sent = remote.held[lease.token]
            sent.told = max(sent.told, reason)
            if reason is Stop.LOST:
                self._lost[lease.id] = remote
            remote.send(protocol.Halt([(lease.id, lease.token)], reason))
            self.overseer.told_to_stop(remote, sent)

    def stop_all(self, reason: Stop) -> None:
        self.staff.barred = True
        self._give_back_waiting(self._waiting)
        for remote in self.staff.remotes.values():
            for sent in remote.held.values():
                sent.told = max(sent.told, reason)
            remote.send(protocol.HaltAll(reason))

    def allow_starts(self) -> None:
        self.staff.barred = False
        for remote in self.staff.remotes.values():
            remote.send(protocol.Open())
        self.staff.fill()

    def running(self) -> tuple[str, ...]:
        held = [sent.lease.id for remote in self.staff.remotes.values() for sent in remote.held.values()]
        return (*held, *(lease.id for lease in self._waiting))

    def deliver(self, seen: list[events.Event]) -> None:
        for remote in self.staff.shared:
            if remote.stage is Stage.READY and not remote.blocked and remote.listens_well():
                remote.send(protocol.Tell([(one.name, msgspec.Raw(protocol.encode_part(one))) for one in seen]))
                return

    def note(self, lease: Lease, line: str) -> None:
        """Add a line to a job's log."""
        self._reports.line(lease, line)

    def runners(self) -> list[RunnerView]:
        """The state of each runner, for the worker status and probes."""
        return [
            RunnerView(
                pid=remote.pid,
                state=remote.stage.name.lower(),
                alone=remote.solo,
                slots=remote.slots,
                running=len(remote.held),
                done=remote.done,
                memory_bytes=remote.memory // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES,
                responds=not remote.blocked,
                jobs=tuple(sent.lease.id for sent in islice(remote.held.values(), JOBS_SHOWN_MAX)),
            )
            for remote in self.staff.remotes.values()
        ]

    def portrait(self) -> bytes:
        return draw(self.runners(), self.unbegun(), self.unknown)

    def knows(self, task: str) -> bool:
        return task in self.facts

    def unbegun(self) -> list[str]:
        """Jobs held here that no runner has begun for a while, or whose retry policy has not been applied yet."""
        before = self._clock.steady() - SHOWN_AFTER_SECONDS
        found = [lease.id for remote in self.staff.remotes.values() for lease in remote.unbegun(before)]
        found += [lease.id for lease in self._waiting if self._waits_since.get(lease.token, before) < before]
        return found + [charge.lease.id for charge in self._charged.values() if charge.since < before]

    async def watch_forever(self) -> None:
        await self.overseer.watch_forever()

    async def end_rest(self) -> bool:
        """Kill the runners that did not stop. Once they are dead, their jobs are released at no cost."""
        for remote in list(self.staff.remotes.values()):
            if remote.held:
                self.staff.kill(remote, spare=True)
        await self.staff.until(lambda: not self.running(), END_WITHIN_SECONDS)
        return True

    def renewed(self, fence_at: float, margin: float) -> None:
        # Handlers are told to stop at fence_at; runners still alive a quarter of the margin later are killed.
        self.staff.deadline(fence_at + margin / 4, fence_at + margin * 3 / 8)

    # ------------------------------------------------------------------ dispatch

    def _spread(self, leases: Sequence[Lease]) -> None:
        able = sorted((one for one in self.staff.shared if one.room), key=lambda one: -one.room)
        start = 0
        for place, remote in enumerate(able):
            left = len(leases) - start
            share = min(remote.room, -(-left // (len(able) - place)))
            if share > 0:
                batch = leases[start : start + share]
                remote.give(batch)
                self.overseer.expect(remote, batch)
                start += share
        if start < len(leases):  # a runner exited after they were claimed
            self._end([Release(id=lease.id, token=lease.token) for lease in leases[start:]])

    def serve_waiting(self) -> None:
        """Send waiting jobs to their dedicated runners, and start missing runners."""
        solos = [one for one in self.staff.remotes.values() if one.solo]
        for remote in solos:
            if self._waiting and remote.room:
                lease = self._waiting.popleft()
                self._waits_since.pop(lease.token, None)
                if remote.spoken is not None:
                    remote.spoken.begin(partial(self._reports.line, lease))
                remote.give([lease])
                self.overseer.expect(remote, [lease])
        starting = sum(one.stage is Stage.STARTING for one in solos)
        room = self._solos_max() - len(solos)  # the rest wait: not begun, so a shutdown releases them at no cost
        for _ in range(min(len(self._waiting) - starting, room)):
            self.staff.start(solo=True)

    def _solos_max(self) -> int:
        """Maximum number of dedicated runners: more than planned while suspect jobs wait.

        After a store outage longer than the lease, every interrupted job is suspect. Queueing for a few processes
        would delay the last of them for minutes.
        """
        since = [self._waits_since[lease.token] for lease in self._waiting if lease.suspect]
        waited = self._clock.steady() - min(since) if since else 0.0
        return self.staff.plan.isolated << min(SUSPECT_DOUBLINGS_MAX, int(waited / SUSPECT_PATIENCE_SECONDS))

    def _follow(self, remote: RunnerProcess, lease: Lease) -> None:
        if remote.spare:
            remote.give([lease])
            self.overseer.expect(remote, [lease])
        else:
            self._end([Release(id=lease.id, token=lease.token)])

    def follows(self, lease: Lease) -> bool:
        """Whether this lease waits on purpose for a lost attempt of the same job to stop."""
        return lease.id in self._lost

    def reroute(self, leases: Sequence[Lease]) -> None:
        """Re-dispatch reclaimed jobs to a runner with room; release the rest."""
        self._spread(leases)

    def _holder(self, token: str) -> RunnerProcess | None:
        return next((one for one in self.staff.remotes.values() if token in one.held), None)

    def _stop_waiting(self, lease: Lease) -> None:
        for waiting in self._waiting:
            if waiting.token == lease.token:
                self._waiting.remove(waiting)
                self._waits_since.pop(lease.token, None)
                self._end([Release(id=lease.id, token=lease.token)])
                return

    def _end(self, batch: list[Ended]) -> None:
        if batch:
            self.post(batch)

    # ------------------------------------------------------------------ callbacks of runners

    def on_ready(self, remote: RunnerProcess) -> None:
        hello = remote.hello
        if hello is not None and not remote.solo:
            self.facts = {name: task for task in hello.tasks for name in (task.name, *task.aliases)}
            self.timeouts = {name: task.timeout for name, task in self.facts.items() if task.timeout is not None}
            self._alone = frozenset(name for name, task in self.facts.items() if task.alone)
            self._listens = frozenset(hello.listens)
            self.on_hello(hello)
        remote.send(protocol.Name(self.worker))
        self._ask_for_judgement()
        if self._waiting:
            self.serve_waiting()
        self.on_room()
        self.on_news()

    def on_said(self, remote: RunnerProcess, frame: object) -> None:
        if isinstance(frame, protocol.Ended):
            self._ended(remote, frame)
        elif isinstance(frame, protocol.Reported):
            self._reported(remote, frame)
        elif isinstance(frame, protocol.Pong):
            remote.pong(frame)

    def _ended(self, remote: RunnerProcess, frame: protocol.Ended) -> None:
        if remote.spoken is not None:
            remote.spoken.end()
        batch: list[Ended] = []
        ends: tuple[Sequence[Ended], ...] = (
            frame.settlements,
            frame.releases,
            [Gone(job_id, token) for job_id, token in frame.gone],
            [Unknown(job_id, token) for job_id, token in frame.unknown],
        )
        for kind in ends:
            for end in kind:
                if remote.drop(end.token) is not None or self._charged.pop(end.token, None) is not None:
                    batch.append(end)
        self._after(remote)
        self._end(batch)

    def _after(self, remote: RunnerProcess) -> None:
        """Follow-up after some of a runner's jobs have ended."""
        remote.changed.set()
        if remote.solo and remote.stage is Stage.READY and children_of(remote.pid):
            self.staff.kill(remote, spare=True)  # its job is over, so its child processes must not live on
        if self._lost:
            here = {sent.lease.id for sent in remote.held.values()}
            self._lost = {job: where for job, where in self._lost.items() if where is not remote or job in here}
        if remote.solo and self._waiting:
            self.serve_waiting()
        self.overseer.look_at(remote)

    def _reported(self, remote: RunnerProcess, frame: protocol.Reported) -> None:
        for said in frame.said:
            sent = remote.held.get(said.token)
            if sent is None:
                continue
            if said.moved:
                self._reports.progress(sent.lease, said.fraction, said.text)
            for line in said.lines:
                self._reports.line(sent.lease, line)
            if said.slow_for:
                self._reports.slow_down(sent.lease, said.slow_for)

    def on_died(self, remote: RunnerProcess, wait_status: int, cause: int, expected: bool) -> None:
        if remote.spoken is not None:
            remote.spoken.end()
        estate = outcomes_after_exit(remote, wait_status, cause, self._clock.steady())
        if estate.crashed or not (expected or remote.hello is None):
            logs.runner_died(remote.pid, wait_status, estate.crashed)
        remote.held.clear()
        self._after(remote)
        for charge in self._charged.values():
            charge.judge = None if charge.judge is remote else charge.judge
        now = self._clock.steady()
        self._charged.update((lease.token, _Charge(lease, outcome, now)) for lease, outcome in estate.charged)
        self._end(estate.ended)
        self._ask_for_judgement()
        if self._waiting and remote.hello is not None and not self.staff.closing:
            self.serve_waiting()
        self.on_news()

    def on_not_started(self, remote: RunnerProcess, again_in: float) -> None:
        """A runner failed to start: release jobs that wait for a dedicated one, as the next start may fail, too."""
        if remote.solo:
            self._give_back_waiting(self._waiting, delay=again_in)
        self._judge_here(list(self._charged.values()))

    def look_at_waiting(self, now: float) -> None:
        """Bound every wait for a runner: release jobs that have waited too long, apply overdue retry policies here."""
        if self._waiting:
            self.serve_waiting()
            late = now - RUNNER_WITHIN_SECONDS
            overdue = [lease for lease in self._waiting if self._waits_since.get(lease.token, now) < late]
            if overdue:
                logs.waited_for_runner([lease.id for lease in overdue], RUNNER_WITHIN_SECONDS)
                self._give_back_waiting(overdue)
        if self._charged:
            late = now - JUDGED_WITHIN_SECONDS
            self._judge_here([charge for charge in self._charged.values() if charge.since < late])

    def _give_back_waiting(self, leases: Iterable[Lease], delay: float = 0.0) -> None:
        gone = {lease.token: lease for lease in leases}
        self._waiting = deque(lease for lease in self._waiting if lease.token not in gone)
        for token in gone:
            self._waits_since.pop(token, None)
        self._end([Release(id=lease.id, token=token, delay=delay) for token, lease in gone.items()])

    def _ask_for_judgement(self) -> None:
        """Have a runner apply the retry policy of killed jobs: only it has the task's code."""
        cases = [charge for charge in self._charged.values() if charge.judge is None]
        if not cases:
            return
        if self.staff.closing or self.staff.barred:  # no runner will respond: release them, not counted as a failure
            self._charged.clear()
            self._end([interrupted(charge.lease) for charge in cases])
            return
        ready = next((one for one in self.staff.shared if one.stage is Stage.READY and not one.blocked), None)
        if ready is not None:
            for charge in cases:
                charge.judge = ready
            ready.send(protocol.Judge([charge.lease for charge in cases], [charge.outcome for charge in cases]))

    def _judge_here(self, cases: Sequence[_Charge]) -> None:
        """No runner can apply the task's full policy: apply the part known here, its retry limit."""
        ended: list[Ended] = []
        for charge in cases:
            lease = charge.lease
            del self._charged[lease.token]
            facts = self.facts.get(lease.task)
            if facts is None:
                ended.append(interrupted(lease))
                continue
            logs.judged_without_runner(lease.id, lease.task)
            options = TaskOptions(retry=RetryPolicy(limit=facts.retries), retain=facts.retain).for_call(lease.options)
            ended.append(settlement_of(lease, options, charge.outcome, None))
        self._end(ended)


class _Charge:
    """A job whose runner was killed because of it, and the runner asked to apply its retry policy."""

    __slots__ = ("judge", "lease", "outcome", "since")

    def __init__(self, lease: Lease, outcome: Outcome, since: float) -> None:
        self.lease, self.outcome, self.since = lease, outcome, since
        self.judge: RunnerProcess | None = None
