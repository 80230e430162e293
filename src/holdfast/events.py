"""Events that workers and producers emit: one frozen class per event, and the Hub that delivers them.

Called by the app (`app.on`, `enqueued`) and by the worker engine. Delivery is best effort: a callback's exception is
logged and has no other effect, and nothing depends on an event. An event is built only if a callback is registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from . import logs
from .errors import ConfigurationError
from .lazy import import_lazily
from .lifecycle import Ending, Failure, Settlement, State
from .records import EVENT_BYTES_MAX
from .rollups import KeptEvent

if TYPE_CHECKING:
    import asyncio
    import difflib

    from .records import Lease, Recovered
else:
    import_lazily(globals(), "asyncio", "difflib")

CALLBACKS_WITHIN_SECONDS = 5.0  # how long a worker that ends waits for async callbacks
Callback = Callable[[Any], Awaitable[None] | None]
C = TypeVar("C", bound=Callable[[Any], Any])


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of all events. An event that was read from the store (`app.watch`) has a time and a position."""

    name: ClassVar[str] = ""
    worker: str | None = None  # the worker that emitted it
    at: float = 0.0  # when the store kept it, in seconds since the epoch
    position: int = 0  # where it is among the events of the store


class JobEvent(Event, frozen=True, kw_only=True):
    """Base class of events about a single job."""

    job_id: str
    task: str
    queue: str
    group: str | None = None
    attempt: int = 0  # 0: no attempt yet


class Enqueued(JobEvent, frozen=True, kw_only=True):
    """This process stored a new job."""

    name: ClassVar[str] = "enqueued"


class Started(JobEvent, frozen=True, kw_only=True):
    """A handler is about to be called. A job claimed ahead may be released before that, and starts again later."""

    name: ClassVar[str] = "started"
    fence: int = 0


class Succeeded(JobEvent, frozen=True, kw_only=True):
    """The store recorded a success."""

    name: ClassVar[str] = "succeeded"


class Failed(JobEvent, frozen=True, kw_only=True):
    """The store recorded a failed attempt, whether or not another follows."""

    name: ClassVar[str] = "failed"
    failures: int = 0
    error: Failure | None = None
    will_retry: bool = False


class Retrying(JobEvent, frozen=True, kw_only=True):
    """A failed job will be tried again after `delay` seconds."""

    name: ClassVar[str] = "retrying"
    failures: int = 0
    delay: float = 0.0
    error: Failure | None = None


class Stalled(JobEvent, frozen=True, kw_only=True):
    """A lease expired or its process died; `holder` held it, `state` is the job's new state."""

    name: ClassVar[str] = "stalled"
    holder: str = ""
    stalls: int = 0
    shared_stalls: int = 0
    state: str = ""


class LeaseLost(JobEvent, frozen=True, kw_only=True):
    """The store reports that a lease is no longer ours: its handler was stopped, its outcome is not recorded."""

    name: ClassVar[str] = "lease_lost"


class Dead(JobEvent, frozen=True, kw_only=True):
    """A job became a dead letter."""

    name: ClassVar[str] = "dead"
    reason: str = ""
    error: Failure | None = None


class Cancelled(JobEvent, frozen=True, kw_only=True):
    """A cancelled job's handler has stopped and the store has recorded it."""

    name: ClassVar[str] = "cancelled"


class Progress(JobEvent, frozen=True, kw_only=True):
    """A job's progress was stored (the latest of its reports since the last write)."""

    name: ClassVar[str] = "progress"
    fraction: float | None = None
    text: str | None = None


class UnknownTask(JobEvent, frozen=True, kw_only=True):
    """A job names a task this worker does not have; it was released and is due again in at most `delay` seconds."""

    name: ClassVar[str] = "unknown_task"
    delay: float = 0.0


class RenewalFailed(Event, frozen=True, kw_only=True):
    """A renewal got no reply; handlers are stopped in `fence_in` seconds unless one succeeds."""

    name: ClassVar[str] = "renewal_failed"
    error: str = ""
    fence_in: float = 0.0


class FencePassed(Event, frozen=True, kw_only=True):
    """No renewal succeeded in time: whatever can be stopped is being stopped before another worker may start it."""

    name: ClassVar[str] = "fence_passed"
    jobs: tuple[str, ...] = ()


class StoreBlocked(Event, frozen=True, kw_only=True):
    """The store has not responded for longer than a quarter of a lease."""

    name: ClassVar[str] = "store_blocked"
    seconds: float = 0.0
    error: str = ""


class StoreSealed(Event, frozen=True, kw_only=True):
    """The store is one side of a move and hands out no work; the worker exits once its running jobs have ended."""

    name: ClassVar[str] = "store_sealed"
    role: str = ""
    stage: str = ""
    other: str = ""


class LoopBlocked(Event, frozen=True, kw_only=True):
    """The handlers' event loop has not responded for `seconds`; `stack` shows where it is blocked."""

    name: ClassVar[str] = "loop_blocked"
    seconds: float = 0.0
    jobs: tuple[str, ...] = ()
    stack: str = ""


class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker is registered and about to claim."""

    name: ClassVar[str] = "worker_started"
    queues: tuple[str, ...] = ()
    slots: int = 0


class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker has stopped; `left_running` jobs could not be stopped and keep their leases until those expire."""

    name: ClassVar[str] = "worker_stopped"
    left_running: tuple[str, ...] = ()


class WorkerPaused(Event, frozen=True, kw_only=True):
    """An operator paused this worker: it claims nothing more; what runs goes on. `by` says who."""

    name: ClassVar[str] = "worker_paused"
    by: str = ""


class WorkerResumed(Event, frozen=True, kw_only=True):
    """An operator resumed this worker: it claims again."""

    name: ClassVar[str] = "worker_resumed"
    by: str = ""


class QueueDrained(Event, frozen=True, kw_only=True):
    """A queue whose jobs this worker ran has no job left that is ready, waiting or running."""

    name: ClassVar[str] = "queue_drained"
    queue: str


class Paused(Event, frozen=True, kw_only=True):
    """An operator paused a queue, a group or a task. Only for those who watch the store."""

    name: ClassVar[str] = "paused"
    queue: str | None = None
    group: str | None = None
    task: str | None = None
    by: str = ""
    reason: str = ""


class Resumed(Event, frozen=True, kw_only=True):
    """An operator ended a pause. Only for those who watch the store."""

    name: ClassVar[str] = "resumed"
    queue: str | None = None
    group: str | None = None
    task: str | None = None
    by: str = ""


class Removed(JobEvent, frozen=True, kw_only=True):
    """An operator deleted a job. Only for those who watch the store."""

    name: ClassVar[str] = "removed"
    by: str = ""


class EventsDropped(Event, frozen=True, kw_only=True):
    """A worker saw more events than it stores within a second: how many of each are missing from `watch`."""

    name: ClassVar[str] = "events_dropped"
    dropped: Mapping[str, int] = {}


EVENTS: Mapping[str, type[Event]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Enqueued,
            Started,
            Succeeded,
            Failed,
            Retrying,
            Stalled,
            LeaseLost,
            RenewalFailed,
            FencePassed,
            StoreBlocked,
            StoreSealed,
            Dead,
            Cancelled,
            Progress,
            UnknownTask,
            LoopBlocked,
            WorkerStarted,
            WorkerStopped,
            WorkerPaused,
            WorkerResumed,
            QueueDrained,
            Paused,
            Resumed,
            Removed,
            EventsDropped,
        )
    }
)


TEXT_CHARS_KEPT = 300
_encode = msgspec.json.Encoder().encode


def shortened(event: Event, *, texts: bool = True) -> Event:
    """The event as stored for `watch`: without an error's traceback, and with at most the beginning of its text."""
    error = getattr(event, "error", None)
    if isinstance(error, Failure):
        text = error.text[:TEXT_CHARS_KEPT] if texts else ""
        return replace(event, error=replace(error, traceback="", text=text))
    if isinstance(event, LoopBlocked | FencePassed | WorkerStopped):
        return replace(event, **{name: () for name in ("jobs", "left_running") if hasattr(event, name)})
    return event


def kept(event: Event) -> KeptEvent:
    """An event as the store keeps it, bounded: of an error no traceback, and no text if that is still too long."""
    body = _encode(shortened(event))
    if len(body) > EVENT_BYTES_MAX:
        body = _encode(shortened(event, texts=False))
    return KeptEvent(name=event.name, body=body)


def about(lease: Lease, worker: str) -> dict[str, Any]:
    """Fields that all events about a lease have."""
    return {
        "job_id": lease.id,
        "task": lease.task,
        "queue": lease.queue,
        "group": lease.group,
        "attempt": lease.attempt,
        "worker": worker,
    }


def of_settlement(lease: Lease, settlement: Settlement, worker: str) -> list[Event]:
    """The events of an outcome, other than a stall, that the store accepted from this worker."""
    facts, error, ending = about(lease, worker), settlement.failure, settlement.ending
    seen: list[Event] = []
    if settlement.failed:
        failures, again = lease.failures + 1, ending is Ending.RETRY
        seen.append(Failed(**facts, failures=failures, error=error, will_retry=again))
        if again:
            seen.append(Retrying(**facts, failures=failures, delay=settlement.delay, error=error))
    if ending is Ending.SUCCEEDED:
        seen.append(Succeeded(**facts))
    elif ending is Ending.BURIED:
        seen.append(Dead(**facts, reason=settlement.reason or "", error=error))
    elif ending is Ending.CANCELLED:
        seen.append(Cancelled(**facts))
    return seen


def of_recovered(ends: Iterable[Recovered], worker: str) -> list[Event]:
    """The events of stalled leases that this worker recovered; worker "" is an operator."""
    seen: list[Event] = []
    for end in ends:
        if not end.counted:
            continue
        facts: dict[str, Any] = {"job_id": end.id, "task": end.task, "queue": end.queue, "group": end.group}
        facts["worker"], state = worker, end.state.value
        stalled = Stalled(**facts, holder=end.worker, stalls=end.stalls, shared_stalls=end.shared_stalls, state=state)
        seen.append(stalled)
        if end.state is State.DEAD:
            seen.append(Dead(**facts, reason="stalled"))
        elif end.state is State.CANCELLED:
            seen.append(Cancelled(**facts))
    return seen


class Hub:
    """Registered callbacks by event. Registration happens at import time; emitting may happen on any thread."""

    def __init__(self) -> None:
        self._callbacks: dict[str, tuple[Callback, ...]] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def on(self, name: str) -> Callable[[C], C]:
        """Register the decorated function for an event; returns it unchanged."""
        if name not in EVENTS:
            near = difflib.get_close_matches(str(name), EVENTS, n=3)
            advice = f"Did you mean {' or '.join(near)}?" if near else f"Events: {', '.join(EVENTS)}."
            raise ConfigurationError(f"no event is named {name!r}. {advice}")

        def register(callback: C) -> C:
            self._callbacks[name] = (*self._callbacks.get(name, ()), callback)
            return callback

        return register

    @property
    def names(self) -> list[str]:
        """The events that have callbacks."""
        return list(self._callbacks)

    def wanted(self, name: str) -> bool:
        """Whether the event has callbacks: check before building an event on a hot path."""
        return name in self._callbacks

    def emit(self, event: Event) -> None:
        """Run the event's callbacks here; async ones become tasks, or run to completion if no loop is running."""
        for callback in self._callbacks.get(event.name, ()):
            try:
                answer = callback(event)
                if inspect.isawaitable(answer):
                    self._follow(event.name, answer)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # SystemExit too: a callback must not be able to end the loop it runs on.
                logs.callback_failed(event.name, error)

    async def settle(self, timeout: float) -> None:
        """Wait for this loop's async callbacks to finish, at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        mine = [task for task in list(self._under_way) if task.get_loop() is loop]  # other loops add theirs meanwhile
        if mine:
            await asyncio.wait(mine, timeout=timeout)

    def _follow(self, name: str, answer: Awaitable[None]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(_guarded(name, answer))
            return
        task = loop.create_task(_guarded(name, answer))
        self._under_way.add(task)  # the loop itself only keeps weak references
        task.add_done_callback(self._under_way.discard)


async def _guarded(name: str, answer: Awaitable[None]) -> None:
    try:
        await answer
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        logs.callback_failed(name, error)


# ----------------------------------------------------------------------------------------------------------------------
# Types: which class of event a listener gets


E = TypeVar("E")
T = TypeVar("T")


class Registration(Protocol[E]):
    """The decorator that `app.on` returns."""

    def __call__(self, callback: Callable[[E], T], /) -> Callable[[E], T]: ...


class Listens:
    """`app.on(…)`, typed by the event's name: the listener takes an object of that event's class."""

    _hub: Hub

    @overload
    def on(self, event: Literal["enqueued"], /) -> Registration[Enqueued]: ...
    @overload
    def on(self, event: Literal["started"], /) -> Registration[Started]: ...
    @overload
    def on(self, event: Literal["succeeded"], /) -> Registration[Succeeded]: ...
    @overload
    def on(self, event: Literal["failed"], /) -> Registration[Failed]: ...
    @overload
    def on(self, event: Literal["retrying"], /) -> Registration[Retrying]: ...
    @overload
    def on(self, event: Literal["stalled"], /) -> Registration[Stalled]: ...
    @overload
    def on(self, event: Literal["lease_lost"], /) -> Registration[LeaseLost]: ...
    @overload
    def on(self, event: Literal["renewal_failed"], /) -> Registration[RenewalFailed]: ...
    @overload
    def on(self, event: Literal["fence_passed"], /) -> Registration[FencePassed]: ...
    @overload
    def on(self, event: Literal["store_blocked"], /) -> Registration[StoreBlocked]: ...
    @overload
    def on(self, event: Literal["store_sealed"], /) -> Registration[StoreSealed]: ...
    @overload
    def on(self, event: Literal["dead"], /) -> Registration[Dead]: ...
    @overload
    def on(self, event: Literal["cancelled"], /) -> Registration[Cancelled]: ...
    @overload
    def on(self, event: Literal["progress"], /) -> Registration[Progress]: ...
    @overload
    def on(self, event: Literal["unknown_task"], /) -> Registration[UnknownTask]: ...
    @overload
    def on(self, event: Literal["loop_blocked"], /) -> Registration[LoopBlocked]: ...
    @overload
    def on(self, event: Literal["worker_started"], /) -> Registration[WorkerStarted]: ...
    @overload
    def on(self, event: Literal["worker_stopped"], /) -> Registration[WorkerStopped]: ...
    @overload
    def on(self, event: Literal["worker_paused"], /) -> Registration[WorkerPaused]: ...
    @overload
    def on(self, event: Literal["worker_resumed"], /) -> Registration[WorkerResumed]: ...
    @overload
    def on(self, event: Literal["queue_drained"], /) -> Registration[QueueDrained]: ...
    @overload
    def on(self, event: Literal["paused"], /) -> Registration[Paused]: ...
    @overload
    def on(self, event: Literal["resumed"], /) -> Registration[Resumed]: ...
    @overload
    def on(self, event: Literal["removed"], /) -> Registration[Removed]: ...
    @overload
    def on(self, event: Literal["events_dropped"], /) -> Registration[EventsDropped]: ...
    def on(self, event: str, /) -> Any:
        """Register a function for an event: `@app.on("stalled")`."""
        return self._hub.on(event)
