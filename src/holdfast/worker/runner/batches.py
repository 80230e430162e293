"""One attempt of several jobs at once, for tasks with `batch=`: decode each → one call → an outcome for each.

Created by the runner on its loop, beside the pipeline of single attempts (attempt.py), which it follows step by step.
Each job keeps its own lease, options, context and settlement; only the handler's call, its time and its slot are
shared. It never talks to the store.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ... import events, logs
from ...batch_calls import BatchContext, Call, Failed
from ...context import (
    CURRENT,
    NOTHING,
    STOPPED,
    CancelRequested,
    Outcome,
    Stop,
    options_for,
    raised,
    returned,
    stack_of,
    traceback_of,
    undecodable,
    unwrapped,
)
from ...errors import ConfigurationError
from ...records import Lease
from .attempt import Run, ThreadCall
from .outcomes import UNBEGUN

if TYPE_CHECKING:
    from ...task import Task
    from .attempt import End, Runner


class Batch:
    """The jobs of one call of a batch handler."""

    def __init__(self, runner: Runner, task: Task[..., Any], leases: Sequence[Lease]) -> None:
        self._runner, self._task = runner, task
        options = [options_for(task.defaults, lease.options) for lease in leases]
        self._timeout = min((one.timeout for one in options if one.timeout is not None), default=None)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self.runs: list[Run] = []
        for lease, own in zip(leases, options, strict=True):
            if own.timeout != self._timeout:  # the shortest timeout applies to all of them
                own = replace(own, timeout=self._timeout)
            call: Call[Any] = Call(
                lease,
                deadline=deadline,
                task=task,
                options=own,
                reports=runner._reports,
                resources=runner._resources,
            )
            run = Run(lease, task, own, call)
            run.batch = self
            self.runs.append(run)
        self._called: list[Run] = []  # those that the handler was called with
        self._left = len(self.runs)  # how many have not ended
        self._began = 0.0
        self._ended = False
        self._handle: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call the handler, on the loop or in a thread."""
        runner, task = self._runner, self._task
        runner.runs.update((run.lease.id, run) for run in self.runs)
        runner._behind += len(self.runs) - 1
        runner._coroutines += len(self.runs) if task.is_async else 0
        if runner._hub.wanted("started"):
            for run in self.runs:
                runner._hub.emit(events.Started(**runner._about(run.lease), fence=run.lease.fence))
        if self._timeout is not None:
            self._timer = runner.loop.call_later(self._timeout, self._overrun)
        if task.is_async:
            self._handle = runner.loop.create_task(self._attempt(), name=self.runs[0].lease.id)
            self._handle.add_done_callback(self._never_ran)
        else:
            runner._pool.submit(ThreadCall(self._attempt_in_thread, self.runs))
            if runner._pool.refused:
                runner._withdraw()

    def drop(self) -> bool:
        """One of its jobs has ended. Return whether others are left: they keep the slot."""
        self._left -= 1
        if not self._left and self._timer is not None:
            self._timer.cancel()
        return self._left > 0

    # ------------------------------------------------------------------ the pipeline

    async def _attempt(self) -> None:
        runs, ends = self._begin(0)
        if runs:
            calls = _calls_of(runs)
            context = self._context(calls)
            CURRENT.set(context)  # in this asyncio task's own context, so it needs no reset
            around = self._runner._around
            try:
                for call in calls:
                    await call._load_parents()
                handler = self._bound(context, calls)
                value = await (handler() if around is None else around.acall(context, handler))
            except asyncio.CancelledError as fault:
                ends += self._cancelled(runs, fault)
            except BaseException as fault:  # also SystemExit and KeyboardInterrupt: the jobs failed, not the worker
                ends += self._raised(runs, fault)
            else:
                ends += results(self._task, runs, value)
            self._runner._after_call()
        self._finish(ends)
        for end in ends:
            self._runner._end(*end)

    def _attempt_in_thread(self) -> None:
        """The same steps in a thread; the loop collects the outcomes."""
        runs, ends = self._begin(threading.get_ident())
        if runs:
            calls = _calls_of(runs)
            context = self._context(calls)
            CURRENT.set(context)
            around = self._runner._around
            try:
                handler = self._bound(context, calls)
                value = handler() if around is None else around.call(context, handler)
            except BaseException as fault:
                ends += self._raised(runs, fault)
            else:
                ends += results(self._task, runs, value)
            self._runner._after_call()
        self._finish(ends)
        self._runner._ended_in_thread(ends)

    def _begin(self, thread_id: int) -> tuple[list[Run], list[End]]:
        """Mark the jobs as begun and decode their arguments. Return those to call the handler with, and the ends of the
        others: taken back, told to stop, or with arguments that do not fit."""
        self._began = time.monotonic()
        begun: list[Run] = []
        ends: list[End] = []
        for run in self.runs:
            run.began, run.entered, run.thread_id = self._began, True, thread_id
            if self._timeout is not None:
                run.context._deadline = self._began + self._timeout  # it may have waited for a thread
            if not self._runner._may_begin(run):
                ends.append((run, UNBEGUN, None))
                continue
            try:
                _set_args(run, self._task)
            except BaseException as fault:  # decoding may run user code of the arguments' classes
                ends.append((run, undecodable(fault), fault))
            else:
                begun.append(run)
        self._called = begun
        return begun, ends

    def _context(self, calls: Sequence[Call[Any]]) -> BatchContext:
        options = self.runs[0].options
        deadline = None if self._timeout is None else self._began + self._timeout
        return BatchContext(
            calls, deadline=deadline, task=self._task, options=options, resources=self._runner._resources
        )

    def _bound(self, context: BatchContext, calls: list[Call[Any]]) -> Callable[[], Any]:
        fn = self._task.fn
        return partial(fn, context, calls) if self._task._wants_context else partial(fn, calls)

    def _raised(self, runs: Sequence[Run], fault: BaseException) -> list[End]:
        if isinstance(fault, MemoryError):
            self._runner._on_memory_error()
        verdict = unwrapped(fault)
        if isinstance(verdict, Failed):
            try:
                errors = verdict.by_place(_calls_of(runs))
            except Exception as wrong:  # also of a class without the attributes of Failed
                return _all(runs, raised(wrong), wrong)
            return [
                (run, NOTHING, None) if n not in errors else (run, raised(errors[n]), errors[n])
                for n, run in enumerate(runs)
            ]
        if isinstance(fault, CancelRequested) and any(run.context.cancelled for run in runs):
            return _all(runs, STOPPED, None)  # those that were not told to stop are released, and run again
        return _all(runs, raised(fault), fault)

    def _cancelled(self, runs: Sequence[Run], fault: BaseException) -> list[End]:
        if not all(run.stop for run in runs):
            if self._handle is None or not self._handle.cancelling():
                return _all(runs, raised(fault), fault)  # raised by the handler itself: this task was not cancelled
            for run in runs:
                run.stop = max(run.stop, Stop.STOPPING)  # the host program is cancelling its tasks
        for run in runs:
            if run.stop is Stop.TIMED_OUT:
                run.stack = traceback_of(fault)
        return _all(runs, STOPPED, None)

    def _finish(self, ends: Iterable[End]) -> None:
        """The call has returned: record its duration, once for the runner and for each of its jobs."""
        self._ended = True
        seconds = time.monotonic() - self._began
        self._runner._seconds += seconds
        for run, _, _ in ends:
            run.seconds = seconds

    def _never_ran(self, handle: asyncio.Task[None]) -> None:
        """Cancelled from outside before its first step: nothing else would end its jobs."""
        if not self._ended:
            self._ended = True
            for run in self.runs:
                self._runner._end(run, STOPPED if run.entered else UNBEGUN, None)

    # ------------------------------------------------------------------ telling it to stop

    def stopped(self) -> None:
        """One of its jobs must stop. The handler continues with the others; if none is left, it is cancelled."""
        if self._handle is not None and self._called and all(run.stop for run in self._called):
            self._handle.cancel()

    def _overrun(self) -> None:
        timeout = self._timeout
        if self._ended or timeout is None:
            return
        if not self._task.is_async:
            left = self._began + timeout - time.monotonic() if self._began else timeout
            if left > 0.0:  # it waited for a thread: the timeout counts from its start
                self._timer = self._runner.loop.call_later(left, self._overrun)
                return
            stack = stack_of(self.runs[0].thread_id)
            for run in self.runs:
                run.stack = stack
            logs.thread_overran(self.runs[0].lease.id, self._task.name, timeout)
        for run in self.runs:
            self._runner._request_stop(run, Stop.TIMED_OUT)


def results(task: Task[..., Any], runs: Sequence[Run], value: object) -> list[End]:
    """The outcomes of a handler that returned: None, or a list with a result, or an exception, for each call."""
    if value is None:
        return _all(runs, NOTHING, None)
    if not isinstance(value, list | tuple) or len(value) != len(runs):
        found = f"{len(value)} results" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        wrong = ConfigurationError(
            f"a batch handler returns None, or a list with one result for each of its {len(runs)} calls; this one "
            f"returned {found}."
        )
        return _all(runs, raised(wrong), wrong)
    return [
        (run, raised(one), one) if isinstance(one, BaseException) else (run, *returned(run.context, task, one))
        for run, one in zip(runs, value, strict=True)
    ]


def _all(runs: Iterable[Run], outcome: Outcome, error: BaseException | None) -> list[End]:
    return [(run, outcome, error) for run in runs]


def _calls_of(runs: Iterable[Run]) -> list[Call[Any]]:
    return [run.context for run in runs if isinstance(run.context, Call)]


def _set_args(run: Run, task: Task[..., Any]) -> None:
    if isinstance(run.context, Call):
        arguments, made_by = task._decode(run.lease.args), task.defaults.batch_of
        run.context.args = arguments if made_by is None else made_by(**arguments)
