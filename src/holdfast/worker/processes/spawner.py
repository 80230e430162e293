"""The spawner: starts, restarts and shuts down the guard and the runner processes.

Used by the pool, on the keeper's loop. It maintains the configured number of runners and notifies the pool when one is
ready or has died. It never decides about jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from msgspec import Struct

from ... import logs
from ...clock import Clock
from ...context import TRACEBACK_CHARS_MAX, UNKNOWN_TASK_DELAY_SECONDS, bounded
from ...options import SLOTS_ASYNC
from ..keeper.store_client import backoff
from . import guard, protocol
from .guard_client import GuardClient
from .launch import COMMAND, FIRST_TAG, Launched
from .runner_process import RunnerProcess, Stage, how_it_ended

EOF_WITHIN_SECONDS = 2.0  # after a runner's exit, to read its last frames
DUMP_WITHIN_SECONDS = 0.5  # to write a stack dump
END_WITHIN_SECONDS = 0.5  # from the closing of a runner's socket to its exit
QUIT_WITHIN_SECONDS = 7.0  # to finish callbacks and shutdown functions
RESTART_SECONDS_MAX = 30.0
SHORT_LIFE_SECONDS = 10.0  # a runner that exits by itself this soon after its hello, without a job, failed to start
START_SECONDS_DEFAULT = 120.0  # from start to hello, which includes importing the app and its startup functions


class Plan(Struct, frozen=True, kw_only=True):
    """How runners are started, and how many."""

    app: str  # MODULE:APP
    app_dir: str = "."
    imports: tuple[str, ...] = ()
    url: str | None = None
    runners: int = 1
    slots: int | None = None  # of all runners together; None: each chooses by its tasks
    queues: tuple[str, ...] | None = None  # the queues the worker serves; None: those of its tasks
    prefetch: int | None = None  # jobs each runner may hold beyond its slots; None: by recent run times
    isolated: int = 4  # maximum number of dedicated runners, for jobs that run alone
    grace: float = 30.0
    start_timeout: float = START_SECONDS_DEFAULT
    max_jobs: int | None = None  # replace a runner after this many jobs
    max_memory: int | None = None  # … or when it uses more than this many bytes
    unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS
    log_level: str = "info"
    log_format: str = "text"
    timeout: float | None = None  # for tasks that set none

    @property
    def slots_each(self) -> int | None:
        return None if self.slots is None else -(-self.slots // self.runners)


class RunnerRefused(Exception):
    """The first runner could not import the app."""

    def __init__(self, text: str, hint: str) -> None:
        self.text, self.hint = text, hint
        super().__init__(f"{text} {hint}".strip())


class SpawnerOwner(Protocol):
    """Receives the spawner's notifications."""

    def on_ready(self, runner: RunnerProcess) -> None: ...

    def on_runner_frame(self, runner: RunnerProcess, frame: object) -> None: ...

    def on_exited(self, runner: RunnerProcess, wait_status: int, cause: int, expected: bool) -> None: ...

    def on_not_started(self, runner: RunnerProcess, again_in: float) -> None: ...


class RunnerSpawner:
    """Manages the guard and the runners."""

    def __init__(self, plan: Plan, owner: SpawnerOwner, clock: Clock) -> None:
        self.plan, self._owner, self._clock = plan, owner, clock
        self.runners: dict[int, RunnerProcess] = {}
        self.closing = False
        self.barred = False  # past the fence or stopping: start no runners
        self.guard_client: GuardClient | None = None
        self.deadlines = (0.0, 0.0)
        self._tags = 0
        self._failed_starts = 0
        self._short_lives = 0  # consecutive
        self._hold_until = 0.0  # start no missing runners before this time
        self._tasks: set[asyncio.Task[Any]] = set()
        self._first: asyncio.Future[protocol.Hello] | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self, launched: Launched | None = None) -> protocol.Hello:
        """Start the guard and the first runner, or adopt them. Return its hello, or raise RunnerRefused."""
        self._first = asyncio.get_running_loop().create_future()
        if launched is None:
            self.guard_client = GuardClient(self)
            self.start()
        else:
            self.guard_client = GuardClient(self, launched.adopt())
            self._adopt(launched)
        return await self._first

    async def close(self) -> None:
        """Shut down all runners and the guard."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        for runner in self.runners.values():
            if runner.stage is Stage.STARTING and self.guard_client is not None:
                self.guard_client.kill(runner.tag)  # it has nothing to finish, and its imports may take long
            runner.stage = max(runner.stage, Stage.LEAVING)
            runner.send(protocol.Quit())
        await self.until(lambda: not self.runners, QUIT_WITHIN_SECONDS)
        if self.guard_client is not None:
            await self.guard_client.close()
        for runner in list(self.runners.values()):
            self._on_exited(runner)

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
        return [runner for runner in self.runners.values() if not runner.dedicated and runner.stage <= Stage.READY]

    def start(self, *, dedicated: bool = False) -> RunnerProcess | None:
        """Start a runner; None if there is no guard to start it."""
        if self.guard_client is None or self.guard_client.lost:
            return None
        runner = self._prepare(dedicated=dedicated)
        self.guard_client.start(runner.tag, COMMAND, runner.fds, speaks=dedicated)
        runner.handed_over()
        return runner

    def _adopt(self, launched: Launched) -> None:
        """The first runner was launched: it waits for its setup."""
        runner = self._prepare(dedicated=False, launched=launched)
        if runner.tag != FIRST_TAG:
            raise RuntimeError("a launched runner is the first one")
        runner.handed_over()

    def _prepare(self, *, dedicated: bool, launched: Launched | None = None) -> RunnerProcess:
        """A runner, with its setup on the way to it."""
        self._tags += 1
        plan, ends = self.plan, None if launched is None else launched.ends
        slots = 1 if dedicated else plan.slots_each
        most = SLOTS_ASYNC if slots is None else slots  # its hello says how many
        runner = self.runners[self._tags] = RunnerProcess(self, self._tags, most, dedicated=dedicated, ends=ends)
        runner.send(
            protocol.Setup(
                protocol.VERSION,
                plan.app,
                plan.app_dir,
                plan.imports,
                plan.url,
                slots,
                plan.queues,
                dedicated,
                plan.unknown_delay,
                plan.log_level,
                plan.log_format,
                plan.timeout,
            )
        )
        self.spawn(runner.connect())
        asyncio.get_running_loop().call_later(plan.start_timeout, self._check_start, runner)
        return runner

    async def ready(self, runner: RunnerProcess) -> bool:
        """Wait until a starting runner is ready; False if it ended instead."""
        while runner.stage is Stage.STARTING:  # noqa: ASYNC110 - it may become ready or exit
            await asyncio.sleep(0.01)
        return runner.stage is Stage.READY

    def _check_start(self, runner: RunnerProcess) -> None:
        if runner.stage is Stage.STARTING and not self.closing:
            self.spawn(self._end_start(runner))

    async def _end_start(self, runner: RunnerProcess) -> None:
        """A runner is not ready in time: log its stack and kill it as a failed start."""
        if self.guard_client is not None and not self.guard_client.lost:
            self.guard_client.signal(runner.tag, guard.DUMP_SIGNAL)
            await asyncio.sleep(DUMP_WITHIN_SECONDS)
        if runner.stage is Stage.STARTING:
            seconds = self.plan.start_timeout
            logs.start_hangs(runner.pid, seconds, bounded(runner.read_stacks(), TRACEBACK_CHARS_MAX))
            runner.refused = protocol.Refused(
                f"a runner process was not ready within {seconds:g} s: importing {self.plan.app}, or a startup "
                "function, hangs or is slow.",
                "The log shows where it is. If it needs more time, raise --start-timeout.",
            )
            self._kill_if_alive(runner)

    async def gone(self, runner: RunnerProcess, seconds: float) -> bool:
        """Wait until a runner has ended."""
        return await self.until(lambda: runner.stage is Stage.GONE, seconds)

    def fill(self) -> None:
        """Start the missing runners."""
        if not (self.closing or self.barred or self._clock.steady() < self._hold_until):
            for _ in range(self.plan.runners - len(self.shared)):
                self.start()

    def kill(self, runner: RunnerProcess, *, jobs_not_to_blame: bool = False) -> None:
        """Kill a runner with everything it started. `jobs_not_to_blame`: they are released at no cost."""
        runner.stage = max(runner.stage, Stage.LEAVING)
        runner.jobs_not_to_blame = runner.jobs_not_to_blame or jobs_not_to_blame
        if self.guard_client is not None:
            self.guard_client.kill(runner.tag)

    def quit(self, runner: RunnerProcess) -> None:
        """Let a runner without jobs exit; kill it if user threads or callbacks keep it alive."""
        runner.stage = max(runner.stage, Stage.LEAVING)
        runner.send(protocol.Quit())
        asyncio.get_running_loop().call_later(QUIT_WITHIN_SECONDS, self._kill_if_alive, runner)

    def deadline(self, kill_at: float, last_at: float) -> None:
        self.deadlines = kill_at, last_at
        if self.guard_client is not None:
            self.guard_client.deadline(kill_at, last_at)

    # ------------------------------------------------------------------ callbacks of guard and runners

    def on_started(self, tag: int, pid: int) -> None:
        if tag in self.runners:
            self.runners[tag].pid = pid

    def on_frame(self, runner: RunnerProcess, frame: object) -> None:
        if isinstance(frame, protocol.Hello):
            runner.hello, runner.ready_at = frame, self._clock.steady()
            runner.slots = min(runner.slots, frame.slots)
            self._failed_starts = 0
            if self._first is not None and not self._first.done():
                self._first.set_result(frame)
            if runner.stage is Stage.STARTING:
                runner.stage = Stage.READY
                self._owner.on_ready(runner)
        elif isinstance(frame, protocol.Refused):
            runner.refused = frame
        else:
            self._owner.on_runner_frame(runner, frame)

    def on_ended(self, tag: int, wait_status: int, cause: int, peak_bytes: int) -> None:
        runner = self.runners.get(tag)
        if runner is None:
            return
        runner.ended = wait_status, cause
        if runner.closed:
            self._on_exited(runner)
        else:  # its last frames may still be in flight
            asyncio.get_running_loop().call_later(EOF_WITHIN_SECONDS, self._on_exited, runner)

    def on_closed(self, runner: RunnerProcess) -> None:
        if runner.ended is not None:
            self._on_exited(runner)
        else:  # it can no longer communicate: it is exiting, or has to be killed
            asyncio.get_running_loop().call_later(END_WITHIN_SECONDS, self._kill_if_alive, runner)

    def _kill_if_alive(self, runner: RunnerProcess) -> None:
        if runner.ended is None and self.guard_client is not None:
            self.guard_client.kill(runner.tag)

    def on_guard_lost(self) -> None:
        """The runners died with their guard. Start over."""
        if self.closing:
            return
        late = 0.0 < self.deadlines[0] <= self._clock.steady()
        logs.guard_lost(late=late)
        self.spawn(self._restart_guard(guard.TOO_LATE if late else guard.GUARD_DIED))

    async def _restart_guard(self, cause: int) -> None:
        lost = list(self.runners.values())
        await self.until(lambda: all(runner.closed for runner in lost), EOF_WITHIN_SECONDS)
        if self.guard_client is not None:
            self.guard_client.kill_descendants({runner.pid for runner in lost if runner.pid and not runner.closed})
            await self.guard_client.close()
        running = sum(runner.begun(job) > 0.0 for runner in lost for job in runner.jobs.values())
        for runner in lost:
            runner.ended, runner.others_died_too = runner.ended or (0, cause), running > 1
            self._on_exited(runner)
        self.guard_client = await self._new_guard()
        self.guard_client.deadline(*self.deadlines)
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

    def _on_exited(self, runner: RunnerProcess) -> None:
        """A runner is dead and all its frames have been read."""
        if runner.stage is Stage.GONE:
            return
        started, expected = runner.hello is not None, self.closing or runner.stage is Stage.LEAVING
        brief = started and not expected and self._was_brief(runner)
        runner.stage = Stage.GONE
        del self.runners[runner.tag]
        wait_status, cause = runner.ended or (0, guard.OWN)
        self._owner.on_exited(runner, wait_status, cause, expected)
        runner.changed.set()
        runner.close()
        with_guard = cause in (guard.GUARD_DIED, guard.TOO_LATE) and self._has_begun
        if brief:
            self._short_lives += self._is_new_failure(runner)
            self._hold_back(runner, self._short_lives, f"a runner process {how_it_ended(wait_status)} without a job.")
            return
        self._short_lives = 0
        if started or self.closing or with_guard:
            self.fill()
        else:
            self._could_not_start(runner, wait_status)

    def _could_not_start(self, runner: RunnerProcess, wait_status: int) -> None:
        refused = runner.refused or protocol.Refused(
            f"a runner process {how_it_ended(wait_status)} before it was ready.",
            "See its output on stderr.",
        )
        if self._first is not None and not self._first.done():
            self._first.set_exception(RunnerRefused(refused.text, refused.hint))
            return
        self._failed_starts += self._is_new_failure(runner)
        self._hold_back(runner, self._failed_starts, refused.text)

    @property
    def _has_begun(self) -> bool:
        """Whether the first start has been decided: from then on, runners that died with their guard are restarted."""
        return self._first is None or self._first.done()

    def _is_new_failure(self, runner: RunnerProcess) -> bool:
        """Shared runners that start together fail together: counted one by one, they would cost the longest pause."""
        return runner.dedicated or self._clock.steady() >= self._hold_until

    def _was_brief(self, runner: RunnerProcess) -> bool:
        """Whether it exited by itself soon after its hello, and not because of a job."""
        begun = any(runner.begun(job) for job in runner.jobs.values())
        lived = self._clock.steady() - runner.ready_at
        by_itself = runner.ended is not None and runner.ended[1] == guard.OWN
        return by_itself and lived < SHORT_LIFE_SECONDS and not (runner.done or begun)

    def _hold_back(self, runner: RunnerProcess, times: int, why: str) -> None:
        """It failed, and the next one may fail, too: start it after a growing pause."""
        wait = min(RESTART_SECONDS_MAX, 50 * backoff(times))
        self._hold_until = self._clock.steady() + wait
        logs.runner_refused(why, wait)
        self.spawn(self._fill_after(wait))
        self._owner.on_not_started(runner, wait)

    async def _fill_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._hold_until - self._clock.steady() < 0.05:  # no later failure has extended the pause
            self._hold_until = 0.0
        self.fill()
