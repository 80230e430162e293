"""Users' own code around jobs: middleware around every attempt, startup and shutdown of what runs handlers, and headers
added at enqueue.

Registered on the app (`app.around`, `app.on_startup`, `app.on_shutdown`, `app.on_enqueue`). The runner and the producer
ask once whether there is any, so an app without hooks pays nothing for them. Nothing here catches what handlers raise.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import Struct

from . import logs
from .context import Context, Resources, error_text
from .errors import ConfigurationError, HoldfastError, StartupFailed
from .lazy import import_lazily

if TYPE_CHECKING:
    import asyncio

    from .job import BoundCall
    from .task import Task
else:
    import_lazily(globals(), "asyncio")

CallNext = Callable[[], Any]
AsyncCallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Any]
AsyncMiddleware = Callable[[Context, AsyncCallNext], Awaitable[Any]]
LifespanHook = Callable[[Resources], Awaitable[None] | None]
EnqueueHook = Callable[["BoundCall[Any]", dict[str, str]], None]
Form = Literal["sync", "async"]

M = TypeVar("M", bound=Callable[[Context, Any], Any])
L = TypeVar("L", bound=Callable[[Resources], Any])
E = TypeVar("E", bound=Callable[["BoundCall[Any]", dict[str, str]], None])

SHUTDOWN_SECONDS = 5.0  # for all shutdown functions of a process together; then it exits without them

# ----------------------------------------------------------------------------------------------------------------------
# Middleware


def tellable_words(error: BaseException) -> str:
    """The text of an error from the user's code on one line. If it has a URL, it may contain a password, too."""
    words = " ".join(error_text(error).split())
    if "://" in words and not isinstance(error, HoldfastError):
        return "its text holds a URL, and is not shown"
    return words


def name_of(fn: object) -> str:
    """A user's function as messages name it."""
    kind = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine; also for an object with an async `__call__`."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class Around(Struct, frozen=True):
    """One middleware: its sync form, its async form, or both."""

    sync: Middleware | None
    asynchronous: AsyncMiddleware | None
    alone: bool = False  # registered with only=: handlers of the other kind do without it
    wanted: Callable[[], bool] | None = None  # asked when a worker has started: False, and handlers do without it

    @property
    def name(self) -> str:
        return name_of(self.sync or self.asynchronous)

    def lacks(self, tasks: Iterable[Task[..., Any]]) -> str | None:
        """Why this middleware cannot surround all of these tasks; None if it can."""
        if self.alone or (self.sync is not None and self.asynchronous is not None):
            return None
        wrong = sorted(task.name for task in tasks if task.is_async is (self.asynchronous is None))
        return self.refusal(", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")) if wrong else None

    def refusal(self, tasks: str) -> str:
        own, other = ("def", "async") if self.sync is not None else ("async def", "sync")
        only = "sync" if self.sync is not None else "async"
        return (
            f"the middleware {self.name} is written with `{own}`, and these handlers are {other}: {tasks}. "
            f"Register both forms, app.around(sync_form, async_form), or say @app.around(only={only!r}) if {other} "
            "handlers do without it."
        )


class _Layer:
    """One middleware of one attempt of a sync handler: calling it runs the middleware around what is inside."""

    __slots__ = ("_context", "_entered", "_fn", "_inner")

    def __init__(self, fn: Middleware, context: Context, inner: CallNext) -> None:
        self._fn, self._context, self._inner, self._entered = fn, context, inner, False

    def __call__(self) -> Any:
        value = self._fn(self._context, self._call_next)
        if not self._entered:
            raise _not_called(self._fn)
        return value

    def _call_next(self) -> Any:
        if self._entered:
            raise _called_twice(self._fn)
        self._entered = True
        return self._inner()


class _AsyncLayer:
    """The same for an async handler."""

    __slots__ = ("_context", "_entered", "_fn", "_inner")

    def __init__(self, fn: AsyncMiddleware, context: Context, inner: AsyncCallNext) -> None:
        self._fn, self._context, self._inner, self._entered = fn, context, inner, False

    async def __call__(self) -> Any:
        value = await self._fn(self._context, self._call_next)
        if not self._entered:
            if inspect.iscoroutine(value):
                value.close()  # call_next() itself: the error below is clearer than Python's warning
            raise _not_called(self._fn)
        return value

    async def _call_next(self) -> Any:
        if self._entered:
            raise _called_twice(self._fn)
        self._entered = True
        return await self._inner()


def _not_called(fn: object) -> ConfigurationError:
    call = "await call_next()" if is_async(fn) else "call_next()"  # type: ignore[arg-type]
    return ConfigurationError(
        f"the middleware {name_of(fn)} returned without `{call}`, so the handler did not run. Call it, or raise "
        "Snooze, Retry or Bury to decide about the job without it."
    )


def _called_twice(fn: object) -> ConfigurationError:
    return ConfigurationError(
        f"the middleware {name_of(fn)} called call_next() a second time. An attempt runs its handler once; raise Retry "
        "for another attempt."
    )


class Chain:
    """All middleware of an app, ready to run; made once when a worker starts."""

    def __init__(self, arounds: Iterable[Around]) -> None:
        inside_out = [*arounds][::-1]
        self._sync = tuple(_form(one, one.sync) for one in inside_out if one.sync is not None or not one.alone)
        self._async = tuple(
            _async_form(one, one.asynchronous) for one in inside_out if one.asynchronous is not None or not one.alone
        )

    def call(self, context: Context, handler: CallNext) -> Any:
        """Run a sync handler inside the middleware, here: the first registered is the outermost."""
        for fn in self._sync:
            handler = _Layer(fn, context, handler)
        return handler()

    async def acall(self, context: Context, handler: AsyncCallNext) -> Any:
        """The same for an async handler, in the caller's task."""
        for fn in self._async:
            handler = _AsyncLayer(fn, context, handler)
        return await handler()


def _form(one: Around, fn: Middleware | None) -> Middleware:
    """The sync form; a middleware without one refuses a task that was registered after the worker started."""

    def refuse(context: Context, call_next: CallNext) -> Any:
        raise ConfigurationError(one.refusal(context.task))

    return refuse if fn is None else fn


def _async_form(one: Around, fn: AsyncMiddleware | None) -> AsyncMiddleware:
    async def refuse(context: Context, call_next: AsyncCallNext) -> Any:
        raise ConfigurationError(one.refusal(context.task))

    return refuse if fn is None else fn


# ----------------------------------------------------------------------------------------------------------------------
# The registry


class Hooks:
    """The hooks of one app, in the order they were registered."""

    def __init__(self) -> None:
        self._arounds: list[Around] = []
        self._startup: list[LifespanHook] = []
        self._shutdown: list[LifespanHook] = []
        self.on_enqueue: list[EnqueueHook] = []

    def add_around(
        self, fn: Any, twin: Any = None, *, only: Form | None = None, wanted: Callable[[], bool] | None = None
    ) -> None:
        """Register a middleware by one form or both. `wanted` is for those that may have nothing to do."""
        forms = [_check_callable(one, "app.around", 2) for one in (fn, twin) if one is not None]
        by_kind = {is_async(one): one for one in forms}
        if len(by_kind) < len(forms):
            raise ConfigurationError(
                f"app.around({name_of(fn)}, {name_of(twin)}): both are {'async' if is_async(fn) else 'sync'}. "
                "Give one `def` and one `async def`, or register each by itself."
            )
        if only not in (None, "sync", "async"):
            raise ConfigurationError(f'app.around(only={only!r}): say only="sync" or only="async".')
        if only is not None and (len(forms) > 1 or is_async(fn) is not (only == "async")):
            raise ConfigurationError(
                f"app.around(only={only!r}): {name_of(fn)} is written with `{'async def' if is_async(fn) else 'def'}`. "
                "A middleware surrounds handlers of its own kind."
            )
        self._arounds.append(Around(by_kind.get(False), by_kind.get(True), only is not None, wanted))

    def add_startup(self, fn: Any) -> None:
        self._startup.append(_check_callable(fn, "app.on_startup", 1))

    def add_shutdown(self, fn: Any) -> None:
        self._shutdown.append(_check_callable(fn, "app.on_shutdown", 1))

    def add_on_enqueue(self, fn: Any) -> None:
        if is_async(_check_callable(fn, "app.on_enqueue", 2)):
            raise ConfigurationError(
                f"app.on_enqueue takes a plain `def`, and {name_of(fn)} is async: sync enqueue() calls it, too."
            )
        self.on_enqueue.append(fn)

    # ------------------------------------------------------------------ for what runs handlers

    def chain(self, tasks: Iterable[Task[..., Any]]) -> Chain | None:
        """The middleware for these tasks; None if there is none. ConfigurationError if it does not fit a task.

        Call it after `start`, which may set up what a middleware needs to be wanted.
        """
        if not self._arounds:
            return None
        known = list(tasks)
        for one in self._arounds:
            why = one.lacks(known)
            if why is not None:
                raise ConfigurationError(why)
        wanted = [one for one in self._arounds if one.wanted is None or one.wanted()]
        return Chain(wanted) if wanted else None

    async def start(self) -> Resources:
        """Run the startup functions, one after another; StartupFailed if one raises."""
        resources = Resources()
        for fn in self._startup:
            try:
                await _run(fn, resources)
            except Exception as error:
                raise StartupFailed(name_of(fn), type(error).__name__, tellable_words(error)) from error
        return resources

    async def stop(self, resources: Resources, within: float = SHUTDOWN_SECONDS) -> None:
        """Run the shutdown functions, the last registered first. A failure is logged; the others run anyway."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        for fn in reversed(self._shutdown):
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    await _run(fn, resources)
            except Exception as error:
                if limit.expired():
                    logs.logger.error("the shutdown function %s did not end within %g s", name_of(fn), within)
                else:
                    logs.logger.error("the shutdown function %s failed", name_of(fn), exc_info=error)


def _check_callable(fn: Any, where: str, number: int) -> Any:
    """`fn` if it can be called with that many arguments and returns once."""
    if not callable(fn) or inspect.isclass(fn):
        raise ConfigurationError(f"{where} takes a function, not {fn!r:.60}.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{where}: {name_of(fn)} is a generator. Write a function without yield.")
    wanted = {1: "resources", 2: "call, headers" if where == "app.on_enqueue" else "ctx, call_next"}[number]
    try:
        inspect.signature(fn).bind(*[None] * number)
    except TypeError:
        raise ConfigurationError(f"{where}: {name_of(fn)} must take ({wanted}).") from None
    except ValueError:
        pass  # a builtin without a signature
    return fn


async def _run(fn: LifespanHook, resources: Resources) -> None:
    """Run an async function on this loop, a sync one in a thread: it may block, and must not block the loop."""
    result = fn(resources) if is_async(fn) else await _in_thread(fn, resources)
    if inspect.isawaitable(result):
        await result


async def _in_thread(fn: LifespanHook, resources: Resources) -> Any:
    """Call it in a daemon thread: one that hangs must not keep the process alive, as a pool's thread would."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def call() -> None:
        value: Any = None
        failure: Exception | None = None
        try:
            value = fn(resources)
        except StopIteration as error:  # a future cannot carry it
            failure = RuntimeError(f"{name_of(fn)} raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"it raised {type(error).__name__}")
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    copied = contextvars.copy_context()
    threading.Thread(target=copied.run, args=(call,), name="holdfast-lifespan", daemon=True).start()
    return await done
