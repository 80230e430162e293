"""The inline worker: the embedded worker with every handler in the thread that runs it, one job at a time.

Called by the sandbox and by `app.eager`. A sync handler runs in the calling thread while no event loop is running
there, as it does in production, so it sees the caller's open transaction and may enqueue; an async handler runs on
the loop. Both start with a copy of the caller's context variables. A sync handler cannot be interrupted here, so its
timeout has no effect. For tests and scripts only: while a handler runs, the worker can do nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec.structs import replace

from .. import events
from ..context import INLINE, CancelRequested, Outcome, OutcomeKind, Stop, Verdict
from ..options import WorkerOptions
from .embedded import Drained, EmbeddedWorker, HostApp
from .keeper.declare import Declared
from .keeper.runners import InProcessRunners, Signals
from .runner.attempt import Run, Runner, ThreadPool

# A handler may raise these: its job fails, as in any worker. Other BaseExceptions, such as KeyboardInterrupt or
# pytest.fail(), are meant for the program around it.
_OF_THE_JOB = (Exception, SystemExit, GeneratorExit, Verdict, CancelRequested, asyncio.CancelledError)
_FAILURES = (OutcomeKind.FAILED, OutcomeKind.BURIED, OutcomeKind.UNDECODABLE)


class _CallingThread(ThreadPool):
    """In place of the pool: runs each call here and now, while the loop of this thread is not marked as running."""

    def submit(self, call: Callable[[], object]) -> None:
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            call()
        finally:
            asyncio._set_running_loop(loop)


class InlineRunner(Runner):
    """Runs attempts in the calling thread and remembers what they raised."""

    def __init__(self, *, slots: int, **wiring: Any) -> None:
        super().__init__(slots=slots, **wiring)
        self._pool = _CallingThread(slots, "holdfast-handler")
        self.context = contextvars.copy_context()  # the caller's
        self.context.run(INLINE.set, True)
        self.on_interrupt: Callable[[], None] = lambda: None
        self.interrupt: BaseException | None = None
        self.failure: BaseException | None = None  # the first exception that made an attempt fail

    def _end(self, run: Run, outcome: Outcome, error: BaseException | None) -> None:
        if self.failure is None and (outcome.kind in _FAILURES or run.stop is Stop.TIMED_OUT):
            self.failure = error or TimeoutError(
                f"job {run.lease.id} exceeded its timeout of {run.options.timeout:g} s"
            )
        super()._end(run, outcome, error)
        if error is not None and not isinstance(error, _OF_THE_JOB):
            self.interrupt = self.interrupt or error
            self.on_interrupt()


class _InlineRunners(InProcessRunners):
    """Starts attempts in the caller's context. Here a handler may block the loop, so nothing watches it."""

    def __init__(self, runner: InlineRunner, hub: events.Hub, signals: Signals) -> None:
        super().__init__(runner, hub, signals)
        self._context = runner.context

    async def watch_forever(self) -> None:
        """Nothing to watch."""


class InlineWorker(EmbeddedWorker):
    """A worker that runs one job at a time in the calling thread: `run_here()`, or `await run()` on a running loop."""

    runner_class: ClassVar[type[Runner]] = InlineRunner

    def __init__(self, app: HostApp, options: WorkerOptions, *, raises: bool = False, cron: bool = True) -> None:
        super().__init__(app, options)
        self._raises = raises  # whether a handler's failure is raised here, too
        self._cron = cron  # whether cron entries are stored and fired
        self._runner: InlineRunner | None = None

    def _make_runners(self, runner: Runner, signals: Signals) -> InProcessRunners:
        assert isinstance(runner, InlineRunner)  # noqa: S101 - runner_class above
        runner.on_interrupt = self.request_stop
        self._runner = runner
        return _InlineRunners(runner, self._app._hub, signals)

    def _declared(self) -> Declared:
        declared = super()._declared()
        return declared if self._cron else replace(declared, entries=())

    def run_here(self) -> Drained:
        """Work in this thread, on a loop of its own. SIGINT stays as it is: it interrupts a handler like any code."""
        with asyncio.Runner() as runner:
            return runner.get_loop().run_until_complete(self.run())

    async def run(self, *, signals: bool = False) -> Drained:
        """Work on the running loop; raises what a handler raised for the program around it, e.g. KeyboardInterrupt."""
        drained = await super().run(signals=signals)
        if self._runner is not None:
            if self._runner.interrupt is not None:
                raise self._runner.interrupt
            if self._raises and self._runner.failure is not None:
                raise self._runner.failure
        return drained
