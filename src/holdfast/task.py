"""Task and its decorator: a registered function whose calls can be bound, validated and enqueued.

Called by the app, by users' modules and by the worker (decode, encode, options). Binding is pure; I/O happens only in
`enqueue` and `aenqueue`, through the app the task belongs to.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine, Mapping
from types import FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from .calls import Placement, TaskSettings, UsingSettings, compile_chooser, make_job, refine
from .codec import Codec, encode_unseen, read_parameters, signature_of
from .context import Context
from .errors import ConfigurationError, TaskAlreadyRegistered
from .job import BoundCall, Job
from .names import default_task_name
from .options import ARGS_BYTES_MAX, RESULT_BYTES_MAX, TaskOptions

if TYPE_CHECKING:
    from .app import Holdfast

P = ParamSpec("P")
R = TypeVar("R")


class Using(Generic[P, R]):
    """A task with options for some of its calls. Frozen; `using` returns a refined copy."""

    __slots__ = ("_group", "_key", "_options", "_placement", "_task")

    def __init__(self, task: Task[P, R], options: TaskOptions, placement: Placement) -> None:
        self._task = task
        self._options = options
        self._placement = placement
        self._group = None if options.group is None else compile_chooser(options.group, "group", task.codec)
        self._key = None if options.key is None else compile_chooser(options.key, "key", task.codec)

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """A copy with more options."""
        return Using(self._task, *refine(self._options, self._placement, settings))

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Validate the arguments and make a call with its id; nothing is stored."""
        task, options, placement = self._task, self._options, self._placement
        given = task.codec.bind(args, kwargs)
        raw = task.codec.encode(given, task.args_bytes_max)
        new = make_job(
            task.name,
            raw,
            options,
            placement,
            group=None if self._group is None else self._group(given),
            key=None if self._key is None else self._key(given),
        )
        return BoundCall(new, placement.connection)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that calls the task with these arguments."""
        return self._task.app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Async version of `enqueue`."""
        return await self._task.app.aenqueue(self.bind(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<{self._task.name} using …>"


class Task(Generic[P, R]):
    """A registered function. `fn` is the function itself."""

    def __init__(self, fn: Callable[..., Any], options: TaskOptions, app: Holdfast | None = None) -> None:
        function = _check_function(fn)
        self.name: str = options.name or default_task_name(function)
        self.fn = fn
        self.options = options.changed(name=self.name)
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.wants_context, parameters = read_parameters(fn, self.name)
        self.codec = Codec(self.name, fn, parameters)
        self._app = app
        self._included_in: weakref.WeakSet[Holdfast] = weakref.WeakSet()
        self._plain: Using[P, R] = Using(self, self.options, Placement())
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn  # for documentation tools and inspect.signature

    @property
    def app(self) -> Holdfast:
        """The app this task's jobs are enqueued on."""
        app = self._sole_app()
        if app is not None:
            return app
        apps = len(self._included_in)
        if not apps:
            raise ConfigurationError(f"task {self.name!r} belongs to no app yet. Call app.include(tasks) first.")
        raise ConfigurationError(
            f"task {self.name!r} is included in {apps} apps. Say which: app.enqueue(task.bind(…))."
        )

    def include_in(self, app: Holdfast) -> None:
        """Remember an app that includes this task; called by `app.include`."""
        self._included_in.add(app)

    def _sole_app(self) -> Holdfast | None:
        return self._app or (next(iter(self._included_in), None) if len(self._included_in) == 1 else None)

    @property
    def args_bytes_max(self) -> int:
        app = self._sole_app()
        return ARGS_BYTES_MAX if app is None else app.args_bytes_max

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Validate the arguments and make a call with its id; `app.enqueue(call)` stores it, once even if repeated."""
        return self._plain.bind(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that calls this task with these arguments."""
        return self.app.enqueue(self._plain.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Async version of `enqueue`."""
        return await self.app.aenqueue(self._plain.bind(*args, **kwargs))

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """This task with options for some calls: queue, priority, group, key, delay, at, id, connection, …"""
        return self._plain.using(**settings)

    def decode(self, args: bytes) -> dict[str, Any]:
        """Stored arguments as keyword arguments, rebuilt from annotations; ArgumentsRejected if they do not fit."""
        return self.codec.decode(args)

    def encode(self, value: Any) -> bytes:
        """A result as JSON; ArgumentsRejected if it cannot be stored."""
        app = self._sole_app()
        return self.codec.encode_value(value, RESULT_BYTES_MAX if app is None else app.result_bytes_max)

    def decode_value(self, value: bytes) -> Any:
        """A stored result, rebuilt from the return annotation."""
        return self.codec.decode_value(value)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        raise ConfigurationError(
            f"task {self.name!r} is not called directly. Use .enqueue(…) for a worker, or .fn(…) to run it here."
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


def _check_function(fn: object) -> FunctionType:
    if not isinstance(fn, FunctionType):
        kind = "a method" if inspect.ismethod(fn) else f"a {type(fn).__name__}"
        raise ConfigurationError(f"a task must be a plain function, not {kind}. Wrap it in a function of its module.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{fn.__qualname__} is a generator; a task returns once. Return a list instead.")
    parameters = list(signature_of(fn).parameters)
    owner = fn.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and parameters[:1] in (["self"], ["cls"]):
        raise ConfigurationError(f"{fn.__qualname__} is a method; a task must be a plain function of its module.")
    return fn


class NamedTask:
    """A task known only by name, for producers without its code: the worker that has it validates the arguments."""

    def __init__(self, app: Holdfast, name: str, options: TaskOptions, placement: Placement) -> None:
        for what in ("group", "key"):
            if callable(getattr(options, what)):
                raise ConfigurationError(
                    f"a task known by name takes a fixed {what}=, as its parameters are not known."
                )
        self.name = name
        self._app = app
        self._options = options
        self._placement = placement

    def using(self, **settings: Unpack[UsingSettings]) -> NamedTask:
        return NamedTask(self._app, self.name, *refine(self._options, self._placement, settings))

    def bind(self, /, *args: Any, **kwargs: Any) -> BoundCall[Any]:
        raw = encode_unseen(self.name, args, kwargs, self._app.args_bytes_max)
        options, placement = self._options, self._placement
        group = options.group if isinstance(options.group, str) else None
        key = options.key if isinstance(options.key, str) else None
        new = make_job(self.name, raw, options, placement, group=group, key=key)
        return BoundCall(new, placement.connection)

    def enqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        return self._app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        return await self._app.aenqueue(self.bind(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<NamedTask {self.name}>"


class TaskDecorator(Protocol):
    """`@app.task(...)`: its type drops a leading Context and keeps an async function's return type."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class Tasks:
    """Tasks by name. Standalone in reusable modules (`app.include(tasks)`); every app is one, too."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, Task[..., Any]] = {}

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name."""
        return MappingProxyType(self._tasks)

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task with that name or alias."""
        return self._tasks.get(name) or self._aliases.get(name)

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **settings: Unpack[TaskSettings]) -> TaskDecorator: ...
    def task(self, fn: Any = None, /, **settings: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue=…, retry=…, …)`."""
        if isinstance(fn, str):
            raise ConfigurationError(f"@app.task({fn!r}): give the name as name={fn!r}.")
        options = TaskOptions.make(**settings)
        if fn is not None:
            return self._decorate(fn, options)
        return lambda function: self._decorate(function, options)

    def _decorate(self, fn: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        task: Task[..., Any] = Task(fn, options, self._own_app())
        self._register(task)
        return task

    def _own_app(self) -> Holdfast | None:
        return None

    def _register(self, task: Task[..., Any]) -> None:
        for name in dict.fromkeys((task.name, *task.options.aliases)):
            if self.find_task(name) is not None:
                raise TaskAlreadyRegistered(name)
        self._tasks[task.name] = task
        for alias in task.options.aliases:
            self._aliases[alias] = task
