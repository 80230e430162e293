"""The pool: runner processes as the keeper's parts see them. Jobs go where they can begin now.

Made by the process worker; everything happens on the keeper's loop. It spreads jobs over the runners, gives isolated
and suspect ones a runner of their own, and turns a runner's end into ends of its jobs. It starts no process itself
(spawner.py) and watches no clock (monitor.py).
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
RUNNER_WITHIN_SECONDS = 30.0  # so long a job waits for a runner of its own, then it is given back
SUSPECT_PATIENCE_SECONDS = 2.0  # each time suspects have waited so long, twice as many processes may run them
SUSPECT_DOUBLINGS_MAX = 2
JUDGED_WITHIN_SECONDS = 5.0  # so long a killed job waits for a runner that knows its policy, then that is applied here
SHOWN_AFTER_SECONDS = 2.0  # a job that has not begun for so long is shown


class Pool(Runners):
    """Runner processes."""

    isolates = True
    apart = True

    def __init__(self, plan: Plan, clock: Clock, reports: Reports) -> None:
        super().__init__()
        self._clock, self._reports = clock, reports
        self.staff = RunnerSpawner(plan, self, clock)
        self.overseer = Monitor(self, clock)
        self.on_hello: Callable[[protocol.Hello], None] = lambda hello: None
        self.facts: dict[str, protocol.TaskFacts] = {}  # by name and alias
        self.timeouts: dict[str, float] = {}  # of the tasks that have one
        self._alone: frozenset[str] = frozenset()  # tasks that are isolated
        self._listens: frozenset[str] = frozenset()
        self._waiting: deque[Lease] = deque()  # for a runner of their own
        self._waits_since: dict[str, float] = {}  # by token
        self._lost: dict[str, RunnerProcess] = {}  # job id → where a lost attempt of it has not stopped
        self._isolated = IsolatedSlots()
        self._charged: dict[str, _Charge] = {}  # by token: killed for what it did, and not yet judged

    async def open(self) -> protocol.Hello:
        """Start the guard and the first runner; the others follow."""
        hello = await self.staff.open()
        self.staff.fill()
        return hello

    async def close(self) -> None:
        await self.staff.close()

    # ------------------------------------------------------------------ what the keeper's parts ask

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
        """How many jobs could still begin alone: processes that are there and idle, and those that may be started."""
        taken = sum(bool(one.held) or one.stage > Stage.READY for one in self.staff.remotes.values() if one.solo)
        return max(0, self.staff.plan.isolated - taken - len(self._waiting))

    def start(self, leases: Sequence[Lease]) -> None:
        if not (self._alone or self._lost or [lease for lease in leases if lease.suspect]):
            self._spread(leases)
            return
        shared: list[Lease] = []
        for lease in leases:
            if lease.id in self._lost:  # the two must not overlap: that runner begins it when the old one has stopped
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
        """Put a line into a job's log."""
        self._reports.line(lease, line)

    def runners(self) -> list[RunnerView]:
        """The runners as people see them."""
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
        """Jobs held here that no runner has begun for a while, or whose end nobody has judged yet."""
        before = self._clock.steady() - SHOWN_AFTER_SECONDS
        found = [lease.id for remote in self.staff.remotes.values() for lease in remote.unbegun(before)]
        found += [lease.id for lease in self._waiting if self._waits_since.get(lease.token, before) < before]
        return found + [charge.lease.id for charge in self._charged.values() if charge.since < before]

    async def watch_forever(self) -> None:
        await self.overseer.watch_forever()

    async def end_rest(self) -> bool:
        """Kill what did not stop. Its jobs are given back at no cost once it is dead."""
        for remote in list(self.staff.remotes.values()):
            if remote.held:
                self.staff.kill(remote, spare=True)
        await self.staff.until(lambda: not self.running(), END_WITHIN_SECONDS)
        return True

    def renewed(self, fence_at: float, margin: float) -> None:
        # Handlers are told to stop at fence_at; who has not stopped a quarter of the margin later is killed.
        self.staff.deadline(fence_at + margin / 4, fence_at + margin * 3 / 8)

    # ------------------------------------------------------------------ where jobs go

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
        if start < len(leases):  # a runner went away since they were claimed
            self._end([Release(id=lease.id, token=lease.token) for lease in leases[start:]])

    def serve_waiting(self) -> None:
        """Give jobs that run alone their runners, and start those that are missing."""
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
        room = self._solos_max() - len(solos)  # the others wait: they are not begun, and cost nothing at a stop
        for _ in range(min(len(self._waiting) - starting, room)):
            self.staff.start(solo=True)

    def _solos_max(self) -> int:
        """How many processes for jobs that run alone: more than planned while suspects wait.

        After a store was away for longer than the lease every interrupted job is one. Their order in a line for a few
        processes would hold the last of them back for minutes.
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
        """Whether it waits for a lost attempt of the same job to stop: not begun on purpose."""
        return lease.id in self._lost

    def reroute(self, leases: Sequence[Lease]) -> None:
        """Jobs that were taken back: to who can begin them now, else to the store."""
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

    # ------------------------------------------------------------------ what runners do

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
        """Some of its jobs have ended."""
        remote.changed.set()
        if remote.solo and remote.stage is Stage.READY and children_of(remote.pid):
            self.staff.kill(remote, spare=True)  # its job is over: nothing of it shall go on
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
        """Jobs that wait for a runner of their own do not wait here for a start that may fail again."""
        if remote.solo:
            self._give_back_waiting(self._waiting, delay=again_in)
        self._judge_here(list(self._charged.values()))

    def look_at_waiting(self, now: float) -> None:
        """Nobody waits here for a runner without a bound: what has waited too long goes back, or is judged here."""
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
        """Have a runner say what a killed job's own retry policy makes of its end."""
        cases = [charge for charge in self._charged.values() if charge.judge is None]
        if not cases:
            return
        if self.staff.closing or self.staff.barred:  # nobody will answer: given back, uncharged
            self._charged.clear()
            self._end([interrupted(charge.lease) for charge in cases])
            return
        ready = next((one for one in self.staff.shared if one.stage is Stage.READY and not one.blocked), None)
        if ready is not None:
            for charge in cases:
                charge.judge = ready
            ready.send(protocol.Judge([charge.lease for charge in cases], [charge.outcome for charge in cases]))

    def _judge_here(self, cases: Sequence[_Charge]) -> None:
        """No runner can say what a task's policy is: apply what is known of it, its number of retries."""
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
    """A job that cost its runner, and who was asked what its task's policy makes of that."""

    __slots__ = ("judge", "lease", "outcome", "since")

    def __init__(self, lease: Lease, outcome: Outcome, since: float) -> None:
        self.lease, self.outcome, self.since = lease, outcome, since
        self.judge: RunnerProcess | None = None
