"""Batch handlers, as their authors see them: the calls they get, and how they report that some of them failed.

Created by the runner (worker/runner/batches.py). Nothing here waits for the store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from .context import Context, Resources, Verdict
from .errors import ConfigurationError
from .records import Lease

if TYPE_CHECKING:
    from .job import BoundCall
    from .options import TaskOptions
    from .task import Task

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")

_NOT_DURABLE = (
    "steps, sleeps and waits belong to one job, and a batch handler is called for many: the next attempt may bring "
    "other jobs together. Use a task without batch=."
)


class Call(Context, Generic[T]):
    """One job of a batch: its arguments in `args`, and everything a Context has: `id`, `attempt`, `cancelled`, `log`, …

    `args` is what `batch_of=` makes of the arguments; without it, a dict of plain values.
    """

    __slots__ = ("args",)

    args: T

    def __repr__(self) -> str:
        return f"<Call {self.id} of {self.task}>"

    def _durable(self) -> NoReturn:
        raise ConfigurationError(_NOT_DURABLE)


class Failed(Verdict):
    """Raised by a batch handler: these calls failed, the others succeeded.

    Keys are calls, or their places in the list; values are what each would have raised alone, so also Retry, Snooze and
    Bury.
    """

    def __init__(self, errors: Mapping[Any, BaseException]) -> None:
        self.errors = dict(errors)
        for place, error in self.errors.items():
            if not isinstance(error, BaseException):
                raise ConfigurationError(
                    f"Failed(…) takes exceptions by call or place, not a {type(error).__name__} for {place!r}."
                )
        super().__init__(f"{len(self.errors)} calls failed")

    def by_place(self, calls: Sequence[Call[Any]]) -> dict[int, BaseException]:
        """The exceptions by place in the list; ConfigurationError if one names no call of it."""
        found: dict[int, BaseException] = {}
        for key, error in self.errors.items():
            place = next((n for n, call in enumerate(calls) if call is key), None) if isinstance(key, Call) else key
            if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(calls):
                raise ConfigurationError(
                    f"Failed(…) names {key!r}, and this batch has {len(calls)} calls: use a call of it, or its place "
                    "from 0."
                )
            found[place] = error
        return found


class _EveryCall:
    """Reports that a batch makes as a whole go to each of its jobs."""

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        self._calls = calls

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None:
        for call in self._calls:
            call.progress(fraction, text)

    def line(self, lease: Lease, line: str) -> None:
        for call in self._calls:
            call.log(line)

    def slow_down(self, lease: Lease, seconds: float) -> None:
        self._calls[0].slow_down(seconds)  # applies to the queue of the first call

    def settles_itself(self, lease: Lease) -> None:
        """Never called: `succeed` below refuses."""


class BatchContext(Context):
    """The context of a whole batch: for a leading Context parameter, middleware and `Context.current()`.

    `calls` are its jobs. Where a context speaks of one job (`id`, `attempt`, `headers`, …) it is the first of them;
    `log` and `progress` go to each, and `cancelled` is True when all of them should stop.
    """

    __slots__ = ("calls",)

    def __init__(
        self,
        calls: Sequence[Call[Any]],
        *,
        deadline: float | None,
        task: Task[..., Any],
        options: TaskOptions,
        resources: Resources,
    ) -> None:
        super().__init__(
            calls[0]._lease,
            deadline=deadline,
            task=task,
            options=options,
            reports=_EveryCall(calls),
            resources=resources,
        )
        self.calls = calls

    @property
    def cancelled(self) -> bool:
        """Whether every job of the batch should stop."""
        return all(call.cancelled for call in self.calls)

    def raise_if_cancelled(self) -> None:
        """End the handler here if every job of the batch should stop."""
        self._cancelled = self.cancelled
        super().raise_if_cancelled()

    def _durable(self) -> NoReturn:
        raise ConfigurationError(_NOT_DURABLE)

    def enqueue(self, call: BoundCall[R]) -> NoReturn:
        raise ConfigurationError("a batch has several jobs: say whose success the new job comes with, call.enqueue(…).")

    def succeed(self, result: Any = None, *, connection: Any) -> NoReturn:
        raise ConfigurationError("a batch has several jobs: settle each by itself, with call.succeed(connection=…).")

    async def asucceed(self, result: Any = None, *, connection: Any) -> NoReturn:
        raise ConfigurationError("a batch has several jobs: settle each by itself, with call.asucceed(connection=…).")


Results = Sequence[R | BaseException]  # one for each call; an exception fails its call
Batch = Callable[[list[Call[T]]], A] | Callable[[Context, list[Call[T]]], A]
AsyncBatch = (
    Callable[[list[Call[T]]], Coroutine[Any, Any, A]] | Callable[[Context, list[Call[T]]], Coroutine[Any, Any, A]]
)
