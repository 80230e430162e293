"""The durable calls of a handler's context: steps, sleeps, waits for signals, versions and the job's own state.

Mixed into Context. Only the signatures are here; step_replay.py, imported by the first such call of a process, does the
work. A handler that uses none of them pays nothing.

In an async handler these return something to await. In a sync one they block the handler's thread until they are over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from .clock import to_seconds
from .errors import ConfigurationError

if TYPE_CHECKING:
    from .step_replay import Replay

P = ParamSpec("P")
R = TypeVar("R")
_UNSET: Any = object()


class _Over:
    """The value a sync handler gets, where an async one gets an awaitable."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_OVER = _Over()


class Durable:
    """Calls whose results outlive the attempt."""

    __slots__ = ()

    def _durable(self) -> Replay:
        """The durable calls of this attempt."""
        raise NotImplementedError

    def _start(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._durable().is_async:
            return work
        from .step_replay import run_here

        return run_here(work)

    # ------------------------------------------------------------------ steps

    @overload
    def step(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once for the job: its result is stored, and later attempts get it without calling `fn` again.

        With an async function it must be awaited. In an async handler use `astep` for a sync function.
        """
        replay = self._durable()
        from .step_replay import _is_async

        if replay.is_async is not _is_async(fn):
            if replay.is_async:
                raise ConfigurationError(
                    f"step {name!r}: {_named(fn)} is not async, and would block the event loop. Use "
                    f"`await ctx.astep({name!r}, …)`, which runs it in a thread."
                )
            raise ConfigurationError(
                f"step {name!r}: {_named(fn)} is async, but the handler is not. Make the handler `async def`."
            )
        return self._step(name, fn, args, kwargs)

    @overload
    def astep(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def astep(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def astep(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Like `step`, to be awaited whatever the function is; a sync one runs in a thread."""
        if not self._durable().is_async:
            raise ConfigurationError("ctx.astep() is for async handlers. Use ctx.step(…) here.")
        return self._step(name, fn, args, kwargs)

    def _step(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replay = self._durable()
        number, name = replay.begin("step", name)
        return self._start(replay.step(number, name, fn, partial(fn, *args, **kwargs)))

    # ------------------------------------------------------------------ sleeps and waits

    def sleep(
        self,
        span: float | timedelta = 0.0,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        name: str | None = None,
    ) -> Awaitable[None]:
        """Sleep for that long without a worker: the attempt ends here, spends nothing, and the job runs again then.

        The handler starts from the top, finds its steps done, and comes past this call. `await` it in async handlers.
        """
        more = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        span_seconds = to_seconds(to_seconds(span, "sleep(…)") + more, "sleep(…)")
        replay = self._durable()
        number, name = replay.begin("sleep", name)
        return cast(Awaitable[None], self._start(replay.sleep(number, name, span_seconds)) or _OVER)

    def wait_for(self, signal: str, *, timeout: float | timedelta | None = None, default: Any = _UNSET) -> Any:
        """The value of a signal sent with `app.signal(job, name, value)`; `await` it in async handlers.

        Until it arrives, the job sleeps without a worker. One that was sent before counts. After `timeout` seconds:
        `default` if given, else SignalTimedOut.
        """
        seconds = None if timeout is None else to_seconds(timeout, "wait_for(timeout=…)")
        replay = self._durable()
        from .step_replay import MISSING

        number, name = replay.begin("wait", signal)
        return self._start(replay.wait_for(number, name, seconds, MISSING if default is _UNSET else default))

    # ------------------------------------------------------------------ versions and state

    def version(self, name: str, current: int) -> int:
        """Which version of a piece of this handler the job follows: the one that was current when it first came here.

        1 for a job that had gone past this place before the version was introduced. For sync handlers.
        """
        return self._here("version", self._durable().version(name, current))

    async def aversion(self, name: str, current: int) -> int:
        """Async version of `version`."""
        return await self._durable().version(name, current)

    @property
    def state(self) -> Any:
        """What the job saved with `save`, in this attempt or before; None at first. In async handlers: `astate`."""
        return self._here("state", self._durable().state())

    async def astate(self) -> Any:
        """Async version of `state`."""
        return await self._durable().state()

    def save(self, state: Any) -> None:
        """Store a value of the job's own, for its later attempts; the newest counts. Fenced by the lease."""
        self._here("save", self._durable().save(state))

    async def asave(self, state: Any) -> None:
        """Async version of `save`."""
        await self._durable().save(state)

    def _here(self, verb: str, work: Coroutine[Any, Any, R]) -> R:
        if self._durable().is_async:
            work.close()
            raise ConfigurationError(f"ctx.{verb} would block the event loop. Use `await ctx.a{verb}(…)` here.")
        from .step_replay import run_here

        return run_here(work)


def _named(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
