"""The spawner: starts, restarts and shuts down the guard and the runner processes.

Used by the pool, on the keeper's loop. It maintains the configured number of runners and notifies the pool when one is
ready or has died. It never decides about jobs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from ... import logs
from ...clock import Clock
from ..keeper.store_client import backoff
from ..runner.attempt import UNKNOWN_TASK_DELAY_SECONDS
from ..runner.outcomes import TRACEBACK_CHARS_MAX, bounded
from . import guard, protocol
from .crash_outcomes import how_it_ended
from .guard_client import GuardClient
from .runner_process import DUMP_SIGNAL, RunnerProcess, Stage

EOF_WITHIN_SECONDS = 2.0  # after a runner's exit, to read its last frames
EVIDENCE_WITHIN_SECONDS = 0.5  # to write a stack dump
END_WITHIN_SECONDS = 0.5  # from the closing of a runner's socket to its exit
QUIT_WITHIN_SECONDS = 7.0  # to finish callbacks
RESTART_SECONDS_MAX = 30.0
SHORT_LIFE_SECONDS = 10.0  # a runner that exits by itself this soon after its hello, without a job, failed to start
START_SECONDS_DEFAULT = 120.0  # from start to hello, which includes importing the app
PROGRAM = "holdfast.cli.runner_main"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How runners are started, and how many."""

    app: str  # MODULE:APP
    app_dir: str = "."
    imports: tuple[str, ...] = ()
    url: str | None = None
    runners: int = 1
    slots: int = 10  # over all runners
    isolated: int = 4  # maximum number of dedicated runners, for jobs that run alone
    grace: float = 30.0
    start_timeout: float = START_SECONDS_DEFAULT
    max_jobs: int | None = None  # replace a runner after this many jobs
    max_memory: int | None = None  # … or when it uses more than this many bytes
    unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS
    verbose: bool = False

    @property
    def slots_each(self) -> int:
        return -(-self.slots // self.runners)


class RunnerRefused(Exception):
    """The first runner could not import the app."""

    def __init__(self, text: str, hint: str) -> None:
        self.text, self.hint = text, hint
        super().__init__(f"{text} {hint}".strip())


class SpawnerOwner(Protocol):
    """Receives the spawner's notifications."""

    def on_ready(self, remote: RunnerProcess) -> None: ...

    def on_said(self, remote: RunnerProcess, frame: object) -> None: ...

    def on_died(self, remote: RunnerProcess, wait_status: int, cause: int, expected: bool) -> None: ...

    def on_not_started(self, remote: RunnerProcess, again_in: float) -> None: ...


class RunnerSpawner:
    """Manages the guard and the runners."""

    def __init__(self, plan: Plan, owner: SpawnerOwner, clock: Clock) -> None:
        self.plan, self._owner, self._clock = plan, owner, clock
        self.remotes: dict[int, RunnerProcess] = {}
        self.closing = False
        self.barred = False  # past the fence or stopping: start no runners
        self.guarding: GuardClient | None = None
        self.deadlines = (0.0, 0.0)
        self._tags = 0
        self._failed_starts = 0
        self._short_lives = 0  # consecutive
        self._hold_until = 0.0  # start no missing runners before this time
        self._tasks: set[asyncio.Task[Any]] = set()
        self._first: asyncio.Future[protocol.Hello] | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> protocol.Hello:
        """Start the guard and the first runner. Return its hello, or raise RunnerRefused."""
        self._first = asyncio.get_running_loop().create_future()
        self.guarding = GuardClient(self)
        self.start()
        return await self._first

    async def close(self) -> None:
        """Shut down all runners and the guard."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        for remote in self.remotes.values():
            if remote.stage is Stage.STARTING and self.guarding is not None:
                self.guarding.kill(remote.tag)  # it has nothing to finish, and its imports may take long
            remote.stage = max(remote.stage, Stage.LEAVING)
            remote.send(protocol.Quit())
        await self.until(lambda: not self.remotes, QUIT_WITHIN_SECONDS)
        if self.guarding is not None:
            await self.guarding.close()
        for remote in list(self.remotes.values()):
            self._on_exited(remote)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait up to `seconds` for a condition. Return whether it holds."""
        deadline = self._clock.steady() + seconds
        while not condition() and self._clock.steady() < deadline:  # noqa: ASYNC110 - several kinds of events end it
            await asyncio.sleep(0.01)
        return condition()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; cancelled at close."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ runners

    @property
    def shared(self) -> list[RunnerProcess]:
        """Runners for many jobs that are ready or starting."""
        return [one for one in self.remotes.values() if not one.solo and one.stage <= Stage.READY]

    def start(self, *, solo: bool = False) -> RunnerProcess | None:
        """Start a runner; None if there is no guard to start it."""
        if self.guarding is None or self.guarding.lost:
            return None
        self._tags += 1
        plan = self.plan
        slots = 1 if solo else plan.slots_each
        remote = self.remotes[self._tags] = RunnerProcess(self, self._tags, slots, solo=solo)
        remote.send(
            protocol.Setup(
                protocol.VERSION,
                plan.app,
                plan.app_dir,
                plan.imports,
                plan.url,
                slots,
                solo,
                plan.unknown_delay,
                plan.verbose,
            )
        )
        self.spawn(remote.connect())
        self.guarding.start(remote.tag, [sys.executable, "-P", "-m", PROGRAM], remote.fds, speaks=solo)
        remote.handed_over()
        asyncio.get_running_loop().call_later(plan.start_timeout, self._look_at_start, remote)
        return remote

    async def ready(self, remote: RunnerProcess) -> bool:
        """Wait until a starting runner is ready; False if it ended instead."""
        while remote.stage is Stage.STARTING:  # noqa: ASYNC110 - it may become ready or exit
            await asyncio.sleep(0.01)
        return remote.stage is Stage.READY

    def _look_at_start(self, remote: RunnerProcess) -> None:
        if remote.stage is Stage.STARTING and not self.closing:
            self.spawn(self._end_start(remote))

    async def _end_start(self, remote: RunnerProcess) -> None:
        """It is not ready in time: log its stack, and kill it as a failed start."""
        if self.guarding is not None and not self.guarding.lost:
            self.guarding.signal(remote.tag, DUMP_SIGNAL)
            await asyncio.sleep(EVIDENCE_WITHIN_SECONDS)
        if remote.stage is Stage.STARTING:
            seconds = self.plan.start_timeout
            logs.start_hangs(remote.pid, seconds, bounded(remote.read_evidence(), TRACEBACK_CHARS_MAX))
            remote.refused = protocol.Refused(
                f"a runner process was not ready within {seconds:g} s: importing {self.plan.app} hangs or is slow.",
                "The log shows where it is. Give --start-timeout more if it needs that.",
            )
            self._kill_if_alive(remote)

    async def gone(self, remote: RunnerProcess, seconds: float) -> bool:
        """Wait until a runner has ended."""
        return await self.until(lambda: remote.stage is Stage.GONE, seconds)

    def fill(self) -> None:
        """Start the missing runners."""
        if not (self.closing or self.barred or self._clock.steady() < self._hold_until):
            for _ in range(self.plan.runners - len(self.shared)):
                self.start()

    def kill(self, remote: RunnerProcess, *, spare: bool = False) -> None:
        """Kill a runner with everything it started. `spare`: its jobs are not to blame."""
        remote.stage = max(remote.stage, Stage.LEAVING)
        remote.spared = remote.spared or spare
        if self.guarding is not None:
            self.guarding.kill(remote.tag)

    def dismiss(self, remote: RunnerProcess) -> None:
        """Let a runner without jobs exit; kill it if user threads or callbacks keep it alive."""
        remote.stage = max(remote.stage, Stage.LEAVING)
        remote.send(protocol.Quit())
        asyncio.get_running_loop().call_later(QUIT_WITHIN_SECONDS, self._kill_if_alive, remote)

    def deadline(self, kill_at: float, last_at: float) -> None:
        self.deadlines = kill_at, last_at
        if self.guarding is not None:
            self.guarding.deadline(kill_at, last_at)

    # ------------------------------------------------------------------ callbacks of guard and runners

    def on_started(self, tag: int, pid: int) -> None:
        if tag in self.remotes:
            self.remotes[tag].pid = pid

    def on_frame(self, remote: RunnerProcess, frame: object) -> None:
        if isinstance(frame, protocol.Hello):
            remote.hello, remote.ready_at = frame, self._clock.steady()
            self._failed_starts = 0
            if self._first is not None and not self._first.done():
                self._first.set_result(frame)
            if remote.stage is Stage.STARTING:
                remote.stage = Stage.READY
                self._owner.on_ready(remote)
        elif isinstance(frame, protocol.Refused):
            remote.refused = frame
        else:
            self._owner.on_said(remote, frame)

    def on_ended(self, tag: int, wait_status: int, cause: int, peak_bytes: int) -> None:
        remote = self.remotes.get(tag)
        if remote is None:
            return
        remote.ended = wait_status, cause
        if remote.closed:
            self._on_exited(remote)
        else:  # its last frames may still be in flight
            asyncio.get_running_loop().call_later(EOF_WITHIN_SECONDS, self._on_exited, remote)

    def on_closed(self, remote: RunnerProcess) -> None:
        if remote.ended is not None:
            self._on_exited(remote)
        else:  # it can no longer communicate: it is exiting, or has to be killed
            asyncio.get_running_loop().call_later(END_WITHIN_SECONDS, self._kill_if_alive, remote)

    def _kill_if_alive(self, remote: RunnerProcess) -> None:
        if remote.ended is None and self.guarding is not None:
            self.guarding.kill(remote.tag)

    def on_guard_lost(self) -> None:
        """The runners died with their guard. Start over."""
        if self.closing:
            return
        late = 0.0 < self.deadlines[0] <= self._clock.steady()
        logs.guard_lost(late=late)
        self.spawn(self._begin_anew(guard.TOO_LATE if late else guard.BEREFT))

    async def _begin_anew(self, cause: int) -> None:
        lost = list(self.remotes.values())
        await self.until(lambda: all(remote.closed for remote in lost), EOF_WITHIN_SECONDS)
        if self.guarding is not None:
            self.guarding.clear_away({remote.pid for remote in lost if remote.pid and not remote.closed})
            await self.guarding.close()
        running = sum(remote.begun(sent) > 0.0 for remote in lost for sent in remote.held.values())
        for remote in lost:
            remote.ended, remote.in_company = remote.ended or (0, cause), running > 1
            self._on_exited(remote)
        self.guarding = await self._new_guard()
        self.guarding.deadline(*self.deadlines)
        self.fill()

    async def _new_guard(self) -> GuardClient:
        """Start a guard, with retries: whatever killed the last one (memory, say) may still prevent a start."""
        tries = 0
        while True:
            try:
                return GuardClient(self)
            except OSError as error:
                tries += 1
                wait = min(RESTART_SECONDS_MAX, 10 * backoff(tries))
                logs.guard_refused(error, wait)
                await asyncio.sleep(wait)

    def _on_exited(self, remote: RunnerProcess) -> None:
        """A runner is dead and all its frames have been read."""
        if remote.stage is Stage.GONE:
            return
        started, expected = remote.hello is not None, self.closing or remote.stage is Stage.LEAVING
        brief = started and not expected and self._was_brief(remote)
        remote.stage = Stage.GONE
        del self.remotes[remote.tag]
        wait_status, cause = remote.ended or (0, guard.OWN)
        self._owner.on_died(remote, wait_status, cause, expected)
        remote.changed.set()
        remote.close()
        with_guard = cause in (guard.BEREFT, guard.TOO_LATE) and self._has_begun
        if brief:
            self._short_lives += self._is_new_failure(remote)
            self._hold_back(remote, self._short_lives, f"a runner process {how_it_ended(wait_status)} without a job.")
            return
        self._short_lives = 0
        if started or self.closing or with_guard:
            self.fill()
        else:
            self._could_not_start(remote, wait_status)

    def _could_not_start(self, remote: RunnerProcess, wait_status: int) -> None:
        refused = remote.refused or protocol.Refused(
            f"a runner process {how_it_ended(wait_status)} before it was ready.",
            "What it said on stderr tells more.",
        )
        if self._first is not None and not self._first.done():
            self._first.set_exception(RunnerRefused(refused.text, refused.hint))
            return
        self._failed_starts += self._is_new_failure(remote)
        self._hold_back(remote, self._failed_starts, refused.text)

    @property
    def _has_begun(self) -> bool:
        """Whether the first start has been decided: from then on, runners that died with their guard are restarted."""
        return self._first is None or self._first.done()

    def _is_new_failure(self, remote: RunnerProcess) -> bool:
        """Shared runners that start together fail together: counted one by one, they would cost the longest pause."""
        return remote.solo or self._clock.steady() >= self._hold_until

    def _was_brief(self, remote: RunnerProcess) -> bool:
        """Whether it exited by itself soon after its hello, and not because of a job."""
        begun = any(remote.begun(sent) for sent in remote.held.values())
        lived = self._clock.steady() - remote.ready_at
        by_itself = remote.ended is not None and remote.ended[1] == guard.OWN
        return by_itself and lived < SHORT_LIFE_SECONDS and not (remote.done or begun)

    def _hold_back(self, remote: RunnerProcess, times: int, why: str) -> None:
        """It failed, and the next one may fail, too: start it after a growing pause."""
        wait = min(RESTART_SECONDS_MAX, 50 * backoff(times))
        self._hold_until = self._clock.steady() + wait
        logs.runner_refused(why, wait)
        self.spawn(self._fill_after(wait))
        self._owner.on_not_started(remote, wait)

    async def _fill_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._hold_until - self._clock.steady() < 0.05:  # no later failure has extended the pause
            self._hold_until = 0.0
        self.fill()
