"""The embedded worker: the whole engine in one process, for tests, development and small programs.

Called by `app.work`, `app.awork` and `app.worker`. Handlers run on the caller's loop and in threads, the keeper in its
own thread. It cannot kill a thread: if that matters, use the multi-process worker (`holdfast work`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct

from .. import events, logs
from ..clock import Clock, SystemClock
from ..context import UNKNOWN_TASK_DELAY_SECONDS, Resources
from ..errors import ConfigurationError
from ..hooks import Chain, Hooks
from ..options import WorkerOptions
from .keeper.batches import plan_of
from .keeper.chains import prefetches
from .keeper.declare import Declared, declared_by
from .keeper.keeper import Keeper, Summary
from .keeper.reports import Reports
from .keeper.runners import InProcessRunners, Signals
from .keeper.shutdown import stop_signals
from .runner.attempt import Runner
from .runner.log_capture import LogCapture

if TYPE_CHECKING:
    from ..backends.contract import Backend
    from ..records import CronEntry, QueueRule, TaskRule
    from ..task import Task


class HostApp(Protocol):
    """What a worker needs from the app."""

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def _hub(self) -> events.Hub: ...

    @property
    def _hooks(self) -> Hooks: ...

    @property
    def _catches_all(self) -> bool: ...

    def _find_handler(self, name: str) -> Task[..., Any] | None: ...

    def _open_backend(self) -> Backend: ...

    def _queue_rules(self) -> Sequence[QueueRule]: ...

    def _task_rules(self) -> Sequence[TaskRule]: ...

    def _cron_entries(self) -> Sequence[CronEntry]: ...


class Drained(Struct, frozen=True):
    """Totals of one worker run.

    `succeeded` counts jobs, `failed` counts failed attempts (whether or not a retry follows), `left` counts unfinished
    jobs of the served queues: not due yet, behind such a job in their group, or paused. None: could not be counted.
    """

    succeeded: int
    failed: int
    left: int | None


class EmbeddedWorker:
    """A worker in this process. Can be run once: `await run()`, or `async with` to run it in the background."""

    runner_class: ClassVar[type[Runner]] = Runner

    def __init__(
        self,
        app: HostApp,
        options: WorkerOptions,
        *,
        clock: Clock | None = None,
        unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS,
    ) -> None:
        self._app, self._options, self._clock = app, options, clock or SystemClock()
        self._unknown_delay = unknown_delay
        self._keeper: Keeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None
        self._background: asyncio.Task[Drained] | None = None
        self._stops_before_start = 0

    async def run(self, *, signals: bool = True) -> Drained:
        """Work on the caller's loop until stopped or, with drain, until all work is done.

        With `signals`, in the main thread, SIGINT and SIGTERM stop it gracefully, and a second one immediately.
        Cancelling this coroutine also stops it immediately: handlers are cancelled and their jobs released.
        """
        if self._loop is not None:
            raise ConfigurationError("this worker has run already. Make a new one: app.work() or app.worker().")
        self._loop = asyncio.get_running_loop()
        hooks = self._app._hooks
        hooks.chain(self._app.tasks.values())  # raises if a middleware does not fit a task
        resources = await hooks.start()
        try:
            return await self._run(hooks.chain(self._app.tasks.values()), resources, signals=signals)
        finally:
            await hooks.stop(resources)

    async def _run(self, around: Chain | None, resources: Resources, *, signals: bool) -> Drained:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Summary] = loop.create_future()
        to_keeper = Signals()
        reports = Reports(to_keeper.report_within)
        runner = self.runner_class(
            find_handler=self._app._find_handler,
            hub=self._app._hub,
            slots=self._options.slots,
            reports=reports,
            hand_over=to_keeper.post,
            unknown_delay=self._unknown_delay,
            around=around,
            resources=resources,
        )
        keeper = self._keeper = self._make_keeper(self._make_runners(runner, to_keeper), reports)
        isolated = [task.name for task in self._app.tasks.values() if task.defaults.isolation == "process"]
        if isolated:
            logs.not_isolated(isolated)
        if self._stops_before_start:
            keeper.ask_to_stop(self._stops_before_start)
        keeper.start(
            on_ready=lambda: _post(loop, self._on_ready),
            on_end=lambda end: _post(loop, _resolve, ended, end),
        )
        try:
            with LogCapture(), stop_signals(loop, self.request_stop) if signals else nullcontext():
                summary = await self._until(ended)
        finally:
            runner.close()
        await self._app._hub.settle(events.CALLBACKS_WITHIN_SECONDS)
        return Drained(summary.succeeded, summary.failed, summary.left)

    def request_stop(self) -> None:
        """Request shutdown, from any thread: the first request is graceful, the second immediate."""
        if self._keeper is None:
            self._stops_before_start += 1
        else:
            self._keeper.ask_to_stop()

    async def __aenter__(self) -> EmbeddedWorker:
        self._ready = asyncio.get_running_loop().create_future()
        self._background = asyncio.get_running_loop().create_task(self.run(signals=False))
        first: list[asyncio.Future[Any]] = [self._ready, self._background]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self._background.result()  # it could not start: raises the reason
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        if self._background is not None:
            self.request_stop()
            await self._background

    # ------------------------------------------------------------------ internals

    def _make_runners(self, runner: Runner, signals: Signals) -> InProcessRunners:
        runners = InProcessRunners(runner, self._app._hub, signals, self._task_names)
        runners.batches = plan_of(self._app.tasks.values())
        runners.catches_all = self._app._catches_all
        runners.group_prefetch = runners.batches.unchained(prefetches(self._app._queue_rules()))
        return runners

    def _make_keeper(self, runners: InProcessRunners, reports: Reports) -> Keeper:
        app, options = self._app, self._options
        queues = options.queues or tuple(sorted({task.defaults.queue for task in app.tasks.values()}))
        if not queues:
            raise ConfigurationError(
                "this worker has nothing to serve: no task is registered and no queue named. "
                "Import the modules that define the tasks, or say queues=."
            )
        return Keeper(
            backend=app._open_backend(),
            declared=self._declared(),
            options=options,
            queues=queues,
            runners=runners,
            signals=runners.signals,
            reports=reports,
            clock=self._clock,
            unknown_delay=self._unknown_delay,
        )

    def _declared(self) -> Declared:
        return declared_by(self._app)

    def _task_names(self) -> list[str]:
        return [name for task in self._app.tasks.values() for name in (task.name, *task.defaults.aliases)]

    def _on_ready(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _until(self, ended: asyncio.Future[Summary]) -> Summary:
        interrupted: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                if self._keeper is not None:
                    self._keeper.ask_to_stop(times=2)
                interrupted = error
            except Exception:  # the keeper's own failure: raised by result() below
                break
        summary = ended.result()
        if interrupted is not None:
            raise interrupted
        return summary


def _post(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        pass  # the host's loop is closed, so nothing waits any more


def _resolve(ended: asyncio.Future[Summary], end: Summary | BaseException) -> None:
    if ended.done():
        return
    if isinstance(end, BaseException):
        ended.set_exception(end)
    else:
        ended.set_result(end)
