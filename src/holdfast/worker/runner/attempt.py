"""ONE ATTEMPT as a straight pipeline: decode → call → outcome → settlement → hand to the keeper.

It lives on the handlers' loop and is called only there (the keeper uses call_soon_threadsafe, one call per batch).
Async handlers run as tasks on that loop, sync handlers in threads. It never talks to the store: outcomes go to the
keeper, all those of one loop iteration in one batch.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ... import events, logs
from ...context import (
    CURRENT,
    RETURNED,
    STOPPED,
    UNKNOWN_TASK_DELAY_SECONDS,
    CancelRequested,
    Context,
    Ended,
    Gone,
    Outcome,
    ReportSink,
    Resources,
    Stop,
    Unknown,
    asked,
    interrupted,
    options_for,
    raised,
    returned,
    settlement_of,
    stack_of,
    traceback_of,
    undecodable,
    unstartable,
)
from ...lifecycle import REMOVED, SUCCEEDED, Settlement
from ...records import Lease, Release
from .arguments import TAKES_RESULTS, with_results, with_results_here
from .chains import RunnerChains
from .outcomes import UNBEGUN, conclude

if TYPE_CHECKING:
    from ...hooks import Chain
    from ...options import TaskOptions
    from ...task import Task
    from .batches import Batch

COLLECT_SECONDS = 0.01  # delay before collecting ends of threads that have their next job: waking the loop is costly
COLLECT_PART = 4  # … while more than one job per this many slots is waiting
NOT_STARTED_SECONDS = 0.25  # delay before releasing a job that could not start: it may be claimed again at once
CHAIN_HAND_OVER_SECONDS = 0.003  # hand over a chain's outcomes after this time, even if the chain continues


class Run:
    """A running attempt."""

    __slots__ = (
        *("batch", "began", "context", "entered", "handle", "lease", "options"),
        *("seconds", "stack", "stop", "successor", "task", "thread_id", "timer"),
    )

    def __init__(self, lease: Lease, task: Task[..., Any], options: TaskOptions, context: Context) -> None:
        self.lease, self.task, self.options, self.context = lease, task, options, context
        self.stop, self.entered = Stop.NOT, False
        self.began = self.seconds = 0.0  # when its handler was called (monotonic); how long a sync one ran, at its end
        self.thread_id = 0  # of a sync handler
        self.stack = ""  # its stack when it timed out
        self.handle: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.successor: Lease | None = None  # a newer lease on the same job, held until this handler has stopped
        self.batch: Batch | None = None  # the batch it belongs to, for a task with batch=


End = tuple[Run, Outcome, BaseException | None]


class Runner:
    """Runs attempts. Must be created on the loop it runs on."""

    def __init__(
        self,
        *,
        find_handler: Callable[[str], Task[..., Any] | None],
        hub: events.Hub,
        slots: int,
        reports: ReportSink,
        hand_over: Callable[[list[Ended]], None],
        unknown_delay: float = UNKNOWN_TASK_DELAY_SECONDS,
        mark_begin: Callable[[str], bool] | None = None,
        on_end: Callable[[Context], None] | None = None,
        on_fault: Callable[[], None] = lambda: None,
        on_memory_error: Callable[[], object] = lambda: None,
        after_call: Callable[[], None] = lambda: None,
        around: Chain | None = None,
        resources: Resources | None = None,
    ) -> None:
        self.loop, self.thread_id = asyncio.get_running_loop(), threading.get_ident()
        self.runs: dict[str, Run] = {}
        self.pongs = 0  # pings answered
        self.worker = ""  # worker id for events
        self.barred = False  # nothing may start: past the fence, or the worker is ending now
        self._stop_requests: dict[str, Stop] = {}  # by token: possibly made before it started
        self._find_handler, self._hub, self._reports, self._hand_over = find_handler, hub, reports, hand_over
        self._unknown_delay = unknown_delay
        self._on_fault = on_fault  # called when our own code failed
        self._on_memory_error = on_memory_error  # frees memory to report that memory ran out
        self._after_call = after_call  # called in the handler's thread when it has returned
        self._on_end = on_end  # called when an attempt has ended, before its outcome is handed over
        self._mark_begin = mark_begin  # called with the token; False: it was taken back and must not begin
        self._around = around  # the app's middleware; None: handlers are called directly
        self._resources = Resources() if resources is None else resources
        self._slots = slots
        self._queue: deque[Lease] = deque()  # claimed ahead: they start when a slot is free
        self._batches: deque[list[Lease]] = deque()  # the same, for batches
        self._behind = 0  # runs other than the first of their batch: a batch takes one slot
        self._chains = RunnerChains(self.loop, self._end_unstarted)
        self._starting = self._handing_over = False
        self._coroutines = 0  # how many of the runs are async handlers
        self._seconds = 0.0  # total run time of the handlers that ended since the last hand-over
        self._pool = ThreadPool(slots, "holdfast-handler")
        self._ended: list[Ended] = []
        self._several = False  # several leases are being started: the first may end before the last has begun
        self._flushing: asyncio.TimerHandle | None = None  # timer that hands over outcomes of chains
        self._from_threads: deque[End] = deque()
        self._collecting = False  # a thread has woken the loop to collect, which it has not done yet
        self._lazy = False  # a timer collects: threads need not wake the loop

    # ------------------------------------------------------------------ called by the keeper

    def start(self, leases: Sequence[Lease]) -> None:
        """Start an attempt for each lease, now or, if all slots are taken, as soon as one is free."""
        self._several = len(leases) > 1
        for lease in self._chains.add(leases) if any(lease.chained for lease in leases) else leases:
            if self._has_room or lease.id in self.runs or self._goes_to_threads(lease):
                self._start_or_follow(lease)
            else:
                self._queue.append(lease)
        self._several = False
        if not self._lazy and self._threads_are_busy():
            self._lazy = True
            self.loop.call_later(COLLECT_SECONDS, self._collect_by_timer)

    @property
    def _has_room(self) -> bool:
        return len(self.runs) - self._behind < self._slots

    def start_batch(self, leases: Sequence[Lease]) -> None:
        """Start one attempt for all of these jobs of a task with batch=, now or as soon as a slot is free."""
        if self._has_room:
            self._start_together(leases)
        else:
            self._batches.append(list(leases))

    def _start_together(self, leases: Sequence[Lease]) -> None:
        from .batches import Batch  # a circular import otherwise

        task = self._find_handler(leases[0].task) if leases else None
        new = [] if task is None or not task.is_batch else [one for one in leases if self._may_start(one)]
        for lease, end in [(one, unstartable(one, options_for(task.defaults, one.options))) for one in new if task]:
            if end is not None:
                new.remove(lease)
                leases = [one for one in leases if one is not lease]
                self._end_with(end)
        others = [one for one in leases if one not in new]
        try:
            if task is not None and new:
                Batch(self, task, new).start()
        except Exception as fault:
            for lease in new:
                self._could_not_start(lease, fault)
        for lease in others:
            self._start_or_follow(lease)

    def _may_start(self, lease: Lease) -> bool:
        return not (self.barred or lease.token in self._stop_requests or lease.id in self.runs)

    def cut_chains(self) -> None:
        """Release the jobs of all chains that have not begun."""
        self._chains.cut_all()

    def _start_or_follow(self, lease: Lease) -> None:
        running = self.runs.get(lease.id)
        if running is None:
            try:
                self._start(lease)
            except Exception as fault:  # must not affect the next ones
                self._could_not_start(lease, fault)
        else:  # a lost attempt of the same job is still running: the two must not overlap
            if running.successor is not None:
                self._end_with(Gone(lease.id, running.successor.token))
            running.successor = lease

    def _goes_to_threads(self, lease: Lease) -> bool:
        """Whether a job that was claimed ahead may join the threads' own queue: there are as many threads as slots, so
        it begins on time without this loop. Not if coroutines take slots, or `started` has a listener."""
        if self._coroutines or self._queue or self._hub.wanted("started"):
            return False
        task = self._find_handler(lease.task)
        return task is not None and not task.is_async

    def _start_next(self) -> None:
        if self._starting:  # a handler ended in its first step: the loop below continues
            return
        self._starting = True
        while self._queue and self._has_room:
            self._start_or_follow(self._queue.popleft())
        while self._batches and self._has_room:
            self._start_together(self._batches.popleft())
        self._starting = False

    def take_seconds(self) -> float:
        """Total run time of the handlers that ended since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def knows(self, task: str) -> bool:
        return self._find_handler(task) is not None

    def stop(self, marked: Sequence[tuple[str, str]], reason: Stop) -> None:
        """Tell attempts, named by (id, token), to stop."""
        for job_id, token in marked:
            self._stop_requests.pop(token, None)
            run = self.runs.get(job_id)
            if run is None:
                for lease in [lease for lease in self._queue if lease.token == token]:
                    self._queue.remove(lease)
                    self._end_unstarted(lease)
                for batch in self._batches:
                    for lease in [lease for lease in batch if lease.token == token]:
                        batch.remove(lease)
                        self._end_unstarted(lease)
                self._chains.cut_with(token)
                continue
            if run.lease.token == token:
                self._request_stop(run, reason)
            elif run.successor is not None and run.successor.token == token:
                waiting, run.successor = run.successor, None
                self._end_unstarted(waiting)

    def stop_all(self, reason: Stop) -> None:
        """Tell every attempt to stop. Those that have not begun are released."""
        self.cut_chains()
        waiting: list[Lease] = [*self._queue, *(lease for batch in self._batches for lease in batch)]
        self._queue.clear()
        self._batches.clear()
        for run in self._withdrawn():
            self._forget(run)
            waiting += [run.lease] if run.successor is None else [run.lease, run.successor]
        for lease in waiting:
            self._end_unstarted(lease)
        for run in list(self.runs.values()):
            if run.successor is not None:
                successor, run.successor = run.successor, None
                self._end_unstarted(successor)
            if run.handle is not None and run.handle.done():  # cancelled from outside before its first step
                self._end(run, STOPPED if run.entered else UNBEGUN, None)
            else:
                self._request_stop(run, reason)

    def warn(self, marked: Sequence[tuple[str, str]], reason: Stop) -> None:
        """The part of `stop` that works while the loop is blocked: set flags and prevent starts. Thread-safe."""
        for job_id, token in marked:
            self._stop_requests[token] = reason
            run = self.runs.get(job_id)
            if run is not None and run.lease.token == token:
                run.context._cancelled = True

    def warn_all(self) -> None:
        """The same for `stop_all`: nothing starts until `barred` is reset."""
        self.barred = True
        for run in list(self.runs.values()):
            run.context._cancelled = True

    def deliver(self, seen: Sequence[events.Event]) -> None:
        """Emit the keeper's events."""
        for event in seen:
            self._hub.emit(event)

    def pong(self) -> None:
        """Answer a liveness ping; also end attempts whose task was cancelled from outside before its first step."""
        self.pongs += 1
        if self._pool.refused:
            self._withdraw()
        for run in list(self.runs.values()):
            if run.handle is not None and run.handle.done():  # it never entered the pipeline, which would have ended it
                self._end(run, STOPPED if run.entered else UNBEGUN, None)

    def close(self) -> None:
        self._pool.close()

    # ------------------------------------------------------------------ the pipeline

    def _start(self, lease: Lease) -> None:
        if self.barred or (self._stop_requests and lease.token in self._stop_requests):
            self._end_unstarted(lease)
            return
        task = self._find_handler(lease.task)
        if task is None:
            self._give_back_unknown(lease)
            return
        if task.is_batch:  # alone
            self._start_together([lease])
            return
        options = options_for(task.defaults, lease.options)
        if (end := unstartable(lease, options)) is not None:
            self._end_with(end)
            return
        timeout = options.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        context = Context(
            lease, deadline=deadline, task=task, options=options, reports=self._reports, resources=self._resources
        )
        run = self.runs[lease.id] = Run(lease, task, options, context)
        if self._hub.wanted("started"):
            self._hub.emit(events.Started(**self._about(lease), fence=lease.fence))
        if timeout is not None:
            run.timer = self.loop.call_later(timeout, self._overrun, run)
        self._coroutines += task.is_async
        if not task.is_async:
            self._pool.submit(ThreadCall(partial(self._attempt_in_thread, run), (run,)))
            if self._pool.refused:
                self._withdraw()
        elif sys.version_info >= (3, 12):
            eager: dict[str, Any] = {"eager_start": True}
            handle = asyncio.Task(self._attempt(run), loop=self.loop, name=lease.id, **eager)
            run.handle = None if handle.done() else handle
        else:
            run.handle = asyncio.Task(self._attempt(run), loop=self.loop, name=lease.id)

    def _withdraw(self) -> None:
        """The system refuses more threads: release the jobs waiting for one, so that other workers can take them."""
        for run in self._withdrawn():
            self._could_not_start(run.lease, None)

    def _withdrawn(self) -> list[Run]:
        """The attempts that no thread has taken yet, taken out of the threads' queue."""
        return [run for call in self._pool.withdraw() if isinstance(call, ThreadCall) for run in call.runs]

    def _could_not_start(self, lease: Lease, fault: BaseException | None) -> None:
        """Release a job that never began, after a short delay: if nothing can start here, it must not spin."""
        logs.not_started(lease.id, lease.task, fault)
        run = self.runs.get(lease.id)
        if run is not None and run.lease is lease:
            self._forget(run)
        self.loop.call_later(NOT_STARTED_SECONDS, self._end_with, Release(id=lease.id, token=lease.token))
        if run is not None and run.successor is not None:
            self.start([run.successor])

    def _forget(self, run: Run) -> None:
        del self.runs[run.lease.id]
        self._coroutines -= run.task.is_async
        if run.batch is not None and run.batch.drop():
            self._behind -= 1
        if run.timer is not None:
            run.timer.cancel()

    async def _attempt(self, run: Run) -> None:
        """Run an async handler's attempt, in its own asyncio task."""
        run.entered, run.began = True, time.monotonic()
        error: BaseException | None = None
        if not self._may_begin(run):
            self._end(run, UNBEGUN, None)
            return
        task, context = run.task, run.context
        try:
            arguments = None if TAKES_RESULTS in (run.lease.options or b"") else task._decode(run.lease.args)
        except BaseException as fault:  # decoding may run user code of the arguments' classes
            self._end(run, undecodable(fault), fault)
            return
        CURRENT.set(context)  # in this asyncio task's own context, so it needs no reset
        try:
            if task._wants_context:
                await context._load_parents()
            arguments = await with_results(task, context) if arguments is None else arguments
            if self._around is None:
                value = await (task.fn(context, **arguments) if task._wants_context else task.fn(**arguments))
            else:
                value = await self._around.acall(context, _bound(task, context, arguments))
        except CancelRequested as fault:
            outcome, error = asked(context, fault)
        except asyncio.CancelledError as fault:
            outcome, error = self._cancelled(run, fault)
        except MemoryError as fault:
            self._on_memory_error()
            outcome, error = raised(fault), fault
        except BaseException as fault:  # also SystemExit and KeyboardInterrupt: the job failed, not the worker
            outcome, error = raised(fault), fault
        else:
            outcome, error = returned(context, task, value)
        self._after_call()
        self._end(run, outcome, error)

    def _attempt_in_thread(self, run: Run) -> None:
        """Run a sync handler's attempt: the same steps in a thread; the loop collects the outcome."""
        task, context = run.task, run.context
        run.began = time.monotonic()
        run.entered, run.thread_id = True, threading.get_ident()
        if context._deadline is not None and run.options.timeout is not None:
            context._deadline = run.began + run.options.timeout  # it may have waited for a thread
        error: BaseException | None = None
        if not self._may_begin(run):
            outcome = UNBEGUN
        else:
            try:
                arguments = None if TAKES_RESULTS in (run.lease.options or b"") else task._decode(run.lease.args)
            except BaseException as fault:
                outcome, error = undecodable(fault), fault
            else:
                CURRENT.set(context)
                try:
                    arguments = with_results_here(task, context) if arguments is None else arguments
                    if self._around is None:
                        value = task.fn(context, **arguments) if task._wants_context else task.fn(**arguments)
                    else:
                        value = self._around.call(context, _bound(task, context, arguments))
                except CancelRequested as fault:
                    outcome, error = asked(context, fault)
                except MemoryError as fault:
                    self._on_memory_error()
                    outcome, error = raised(fault), fault
                except BaseException as fault:
                    outcome, error = raised(fault), fault
                else:
                    outcome, error = returned(context, task, value)
                self._after_call()
        run.seconds = time.monotonic() - run.began
        self._ended_in_thread([(run, outcome, error)])

    def _ended_in_thread(self, ends: Sequence[End]) -> None:
        self._from_threads.extend(ends)
        if not self._collecting and not (self._lazy and self._threads_are_busy()):
            self._collecting = True
            try:
                self.loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return  # the loop has been closed: the lease expires by itself

    def _may_begin(self, run: Run) -> bool:
        """False if it was told to stop, or taken back, before its first step."""
        return not run.context._cancelled and (self._mark_begin is None or self._mark_begin(run.lease.token))

    def _threads_are_busy(self) -> bool:
        """Whether every thread that ends a job already has its next one, so that no thread waits for this loop."""
        others = self._queue or self._coroutines or self._chains.after  # a chain waits for its job to end
        return self._pool.waiting > self._slots // COLLECT_PART and not others

    def _collect(self) -> None:
        self._collecting = False  # reset before draining: later arrivals schedule another collection
        while self._from_threads:
            self._end(*self._from_threads.popleft())

    def _collect_by_timer(self) -> None:
        self._collect()
        self._lazy = self._threads_are_busy()
        if self._lazy:
            self.loop.call_later(COLLECT_SECONDS, self._collect_by_timer)
        else:
            self._collect()  # a thread may have relied on this timer a moment ago

    def _cancelled(self, run: Run, fault: BaseException) -> tuple[Outcome, BaseException | None]:
        if not run.stop:
            if run.handle is None or not run.handle.cancelling():
                return raised(fault), fault  # raised by the handler itself: this task was not cancelled
            run.stop = Stop.STOPPING  # the host program is cancelling its tasks
        elif run.stop is Stop.TIMED_OUT:
            run.stack = traceback_of(fault)
        return STOPPED, None

    # ------------------------------------------------------------------ the end of an attempt

    def _end(self, run: Run, outcome: Outcome, error: BaseException | None) -> None:
        try:
            self._end_run(run, outcome, error)
        except Exception as fault:  # a handler tampered with our code, or a bug of ours: the job must end anyway
            logs.end_failed(run.lease.id, run.lease.task, fault)
            self._on_fault()
            if self.runs.get(run.lease.id) is run:
                self._forget(run)
            self._end_with(interrupted(run.lease))

    def _end_run(self, run: Run, outcome: Outcome, error: BaseException | None) -> None:
        lease, value, ran = run.lease, outcome.value, run.seconds
        self._forget(run)
        if run.began:
            ran = ran or time.monotonic() - run.began
            self._seconds += ran if run.batch is None else 0.0  # a batch's call counts once
        if self._on_end is not None:
            self._on_end(run.context)
        if outcome.kind is RETURNED and not (run.stop or run.context._settled):  # common
            retain = REMOVED if run.options.remove else run.options.retain
            end: Ended = Settlement(
                id=lease.id, token=lease.token, ending=SUCCEEDED, value=value, retain=retain, ran=ran
            )
        else:
            end = conclude(run, outcome, error, self._reports)
            if isinstance(end, Settlement):
                end = replace(end, ran=ran)
        if run.context._children is not None:
            end = run.context._children.stored_with(end)
        self._ended.append(end)
        succeeded = type(end) is Settlement and end.ending is SUCCEEDED  # with jobs it may still be refused
        after = self._chains.after
        following = self._chains.next(lease, succeeded=succeeded) if after and lease.token in after else None
        if following is not None:
            self._queue.appendleft(following)  # not started here: handlers that end in their first step would recurse
            if self._flushing is None:  # the outcomes of a chain travel together
                self._flushing = self.loop.call_later(CHAIN_HAND_OVER_SECONDS, self._flush)
        if run.successor is not None:
            self._start(run.successor)
        if self._queue or self._batches:
            self._start_next()
        if following is None and not self._handing_over:  # at once if nothing else can end in this loop iteration
            (self._hand_over_soon if self.runs or self._starting or self._several else self._flush)()

    def apply_retry_policy(self, leases: Sequence[Lease], ends: Sequence[Outcome]) -> None:
        """Apply the tasks' retry policies to attempts whose runner was killed because of them."""
        for lease, outcome in zip(leases, ends, strict=True):
            task = self._find_handler(lease.task)
            if task is None:
                self._give_back_unknown(lease)
            else:
                self._end_with(settlement_of(lease, options_for(task.defaults, lease.options), outcome, None))

    def _end_unstarted(self, lease: Lease) -> None:
        """Release a lease whose handler was never called. The store knows if it was lost or a cancel was requested."""
        self._end_with(Release(id=lease.id, token=lease.token))

    def _give_back_unknown(self, lease: Lease) -> None:
        logs.unknown_task(lease.id, lease.task)
        if self._hub.wanted("unknown_task"):
            self._hub.emit(events.UnknownTask(**self._about(lease), delay=self._unknown_delay))
        self._end_with(Unknown(lease.id, lease.token))

    def _end_with(self, ended: Ended) -> None:
        self._ended.append(ended)
        if self._chains.after and ended.token in self._chains.after:
            self._chains.cut(self._chains.after.pop(ended.token))
        if not self._handing_over:
            self._hand_over_soon()

    def _hand_over_soon(self) -> None:
        self._handing_over = True
        self.loop.call_soon(self._flush)  # after everything that ends in this loop iteration

    def _flush(self) -> None:
        self._handing_over = False
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        ended, self._ended = self._ended, []
        if ended:
            self._hand_over(ended)

    # ------------------------------------------------------------------ telling an attempt to stop

    def _request_stop(self, run: Run, reason: Stop) -> None:
        run.context._cancelled = True
        if reason <= run.stop:
            return
        run.stop = reason
        if run.batch is not None:
            run.batch.stopped()
        # A task cancelled before its first step would never enter the pipeline. It checks `context.cancelled` then.
        if run.entered and run.handle is not None:
            run.handle.cancel()

    def _overrun(self, run: Run) -> None:
        timeout = run.options.timeout
        if run.seconds:
            return  # it ended in time and is about to be collected
        if not run.task.is_async and timeout is not None:
            left = run.began + timeout - time.monotonic() if run.entered else timeout
            if left > 0.0:  # it waited for a thread: the timeout counts from its start
                run.timer = self.loop.call_later(left, self._overrun, run)
                return
            run.stack = stack_of(run.thread_id)
            logs.thread_overran(run.lease.id, run.lease.task, timeout)
        self._request_stop(run, Stop.TIMED_OUT)

    def _about(self, lease: Lease) -> dict[str, Any]:
        return events.about(lease, self.worker)


class ThreadCall:
    """A sync handler's attempt, queued for a thread, and its runs: one, or those of a batch."""

    __slots__ = ("_attempt", "_context", "runs")

    def __init__(self, attempt: Callable[[], None], runs: Sequence[Run]) -> None:
        self._attempt, self.runs, self._context = attempt, runs, contextvars.copy_context()

    def __call__(self) -> None:
        self._context.run(self._attempt)


def _bound(task: Task[..., Any], context: Context, arguments: dict[str, Any]) -> Callable[[], Any]:
    """The handler's call, as the innermost middleware calls it."""
    return partial(task.fn, context, **arguments) if task._wants_context else partial(task.fn, **arguments)


class ThreadPool:
    """Daemon threads for sync handlers, at most `most`, started on demand and reused.

    `submit` and `close` are called only on the loop's thread. Unlike the standard pool's, these threads never delay
    process exit: a handler that does not stop must not keep the whole program alive, and nothing here pretends that a
    thread could be killed.

    Waking a thread costs more than a short handler. So one is woken at a time, and each that takes a call wakes another
    if calls are left: blocking handlers quickly get a thread each, short ones finish before the next thread is up.

    The system may refuse a thread. Then nothing waits for it: `refused` is set, and `withdraw` returns the calls that
    no thread has taken.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: deque[Callable[[], object]] = deque()
        self._bell: SimpleQueue[bool] = SimpleQueue()  # each item wakes one idle thread; False: end
        self._guard = threading.Lock()  # protects the fields below
        self.refused = False  # the system refused a thread; calls may be waiting without one
        self._coming = False  # a woken or new thread is about to take calls
        self._idle = 0
        self._count = 0

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call`, which must not raise, as soon as a thread is free."""
        self._calls.append(call)
        if not self._coming:
            self._wake()

    @property
    def waiting(self) -> int:
        """How many calls no thread has taken yet."""
        return len(self._calls)

    def close(self) -> None:
        """End idle threads now and busy ones after their call. Does not wait."""
        for _ in range(self._count):
            self._bell.put(False)

    def withdraw(self) -> list[Callable[[], object]]:
        """Take out the calls that no thread has taken: after a refusal they might wait long."""
        self.refused = False
        withdrawn: list[Callable[[], object]] = []
        while True:
            try:
                withdrawn.append(self._calls.popleft())
            except IndexError:
                return withdrawn

    def _wake(self) -> None:
        """Wake or start a thread, unless one is coming or all are busy: those check again before they go idle."""
        with self._guard:
            if self._coming:
                return
            if self._idle:
                self._idle -= 1
                self._coming = True
                self._bell.put(True)
            elif self._count < self._most:
                self._coming = True
                try:
                    threading.Thread(target=self._serve, name=f"{self._name}-{self._count + 1}", daemon=True).start()
                except RuntimeError:  # no more threads, for now
                    self._coming, self.refused = False, True
                else:
                    self._count += 1

    def _serve(self) -> None:
        calls = self._calls
        awake = True
        while awake:
            self._coming = False  # reset before taking calls: a later submit wakes another thread
            while True:
                try:
                    call = calls.popleft()
                except IndexError:
                    with self._guard:
                        if calls:  # submitted since popleft, while no thread could be woken
                            continue
                        self._idle += 1
                    break
                if calls and not self._coming:
                    self._wake()
                call()
                del call  # keep no reference to the last attempt while idle
            awake = self._bell.get()
