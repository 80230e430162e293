"""Task and its decorator: a registered function whose calls can be bound, checked and enqueued.

Called by the app, by users' modules and by the worker (decode, encode, options). Binding is pure; I/O happens only in
`enqueue` and `aenqueue`, through the app the task belongs to.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from .clock import to_seconds
from .codec import Codec, encode_unseen, read_parameters
from .context import Context
from .errors import ArgumentsRejected, ConfigurationError, TaskAlreadyRegistered
from .ids import new_id
from .job import BoundCall, Job
from .names import check_name, default_task_name
from .options import ARGS_BYTES_MAX, RESULT_BYTES_MAX, Chooser, Duration, TaskOptions
from .records import Conflict, NewJob, Revival
from .retry import Backoff, RetryPolicy

if TYPE_CHECKING:
    from .app import Holdfast

P = ParamSpec("P")
R = TypeVar("R")


class TaskSettings(TypedDict, total=False):
    """What `@app.task(...)` takes; see TaskOptions for the checked forms."""

    name: str
    queue: str
    priority: int
    group: Chooser | None
    key: Chooser | None
    on_conflict: Conflict
    retry: RetryPolicy | int | Backoff | None
    timeout: Duration | None
    max_stalls: int
    isolation: Literal["none", "process"]
    memory_limit: int | None
    expires: Duration | None
    retain: Duration
    rate: str | None
    limit: int | None
    aliases: str | Iterable[str]
    revive: Revival | None


class UsingSettings(TypedDict, total=False):
    """What `.using(...)` takes: what is stored with one job."""

    queue: str
    priority: int
    group: Chooser | None
    key: Chooser | None
    on_conflict: Conflict
    max_stalls: int
    expires: Duration | None
    revive: Revival | None
    id: str
    delay: Duration | None
    at: datetime | None
    connection: Any


_STORED = frozenset({"queue", "priority", "group", "key", "on_conflict", "max_stalls", "expires", "revive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """When one call is due, under which id, and through whose connection."""

    id: str | None = None
    delay: float | None = None
    due_at: float | None = None
    connection: Any = None

    def changed(self, given: Mapping[str, Any]) -> Placement:
        """This placement with what `.using` said, checked."""
        delay, at = given.get("delay"), given.get("at")
        if delay is not None and at is not None:
            raise ConfigurationError("delay= and at= exclude each other. Give one of them.")
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise ConfigurationError(
                "at= takes an aware datetime, such as datetime.now(UTC) + timedelta(hours=1). "
                "A naive one does not say which clock it means."
            )
        timed = delay is not None or at is not None
        return Placement(
            id=check_name(given["id"], "id") if given.get("id") is not None else self.id,
            delay=to_seconds(delay, "delay=") if delay is not None else None if timed else self.delay,
            due_at=at.timestamp() if at is not None else None if timed else self.due_at,
            connection=given.get("connection", self.connection),
        )


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`.using` settings parted into stored task options and placement; the others are refused with the reason."""
    stored: dict[str, Any] = {}
    placed: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _STORED:
            stored[name] = value
        elif name in ("id", "delay", "at", "connection"):
            placed[name] = value
        elif name in TaskSettings.__annotations__:
            raise ConfigurationError(f"{name}= belongs to the task, not to one call. Set it where the task is defined.")
        else:
            known = ", ".join(sorted(UsingSettings.__annotations__))
            raise ConfigurationError(f".using() has no {name}=. It takes {known}.")
    return stored, placed


Choice = Callable[[Mapping[str, Any]], str]


def compile_chooser(chooser: Chooser, what: str, codec: Codec) -> Choice:
    """A group or key as a function of the bound arguments; its parameters are checked here, once."""
    if isinstance(chooser, str):
        fixed = chooser
        return lambda given: fixed
    call = chooser
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"task {codec.task!r}: the parameters of its {what} callable cannot be read. Use a lambda or a function."
        ) from None
    wanted: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            wanted += [name for name in codec.names if name not in wanted]
        elif parameter.name in codec.names and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigurationError(
                f"task {codec.task!r}: its {what} callable wants {parameter.name!r}, which is not a parameter of the "
                f"task. It has: {', '.join(codec.names) or 'none'}."
            )
    names, defaults = tuple(wanted), codec.defaults

    def answer(given: Mapping[str, Any]) -> str:
        try:
            chosen = call(**{name: given[name] if name in given else defaults[name] for name in names})
        except Exception as error:
            raise ArgumentsRejected(codec.task, f"its {what} callable raised {type(error).__name__}") from error
        return check_name(chosen, f"{what} of task {codec.task!r}")

    return answer


class Using(Generic[P, R]):
    """A task with options for some calls. Frozen; `using` again refines it."""

    __slots__ = ("_group", "_key", "_options", "_placement", "_task")

    def __init__(self, task: Task[P, R], options: TaskOptions, placement: Placement) -> None:
        self._task = task
        self._options = options
        self._placement = placement
        self._group = None if options.group is None else compile_chooser(options.group, "group", task.codec)
        self._key = None if options.key is None else compile_chooser(options.key, "key", task.codec)

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """These options with some more."""
        stored, placed = split_settings(settings)
        return Using(self._task, self._options.changed(**stored), self._placement.changed(placed))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Check the arguments and make a call with its id; nothing is stored."""
        task, options, placement = self._task, self._options, self._placement
        given = task.codec.bind(args, kwargs)
        raw = task.codec.encode(given, task.args_bytes_max)
        new = NewJob(
            id=placement.id or new_id(),
            task=task.name,
            queue=options.queue,
            args=raw,
            priority=options.priority,
            group=None if self._group is None else self._group(given),
            key=None if self._key is None else self._key(given),
            on_conflict=options.on_conflict,
            delay=placement.delay,
            due_at=placement.due_at,
            expires=options.expires,
            max_stalls=options.max_stalls,
            revival=options.revive,
        )
        return BoundCall(new, placement.connection)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that calls the task with these arguments."""
        return self._task.app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`."""
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
        """The app this task's jobs go to."""
        if self._app is not None:
            return self._app
        apps = list(self._included_in)
        if len(apps) == 1:
            return apps[0]
        if not apps:
            raise ConfigurationError(f"task {self.name!r} belongs to no app yet. Call app.include(tasks) first.")
        raise ConfigurationError(
            f"task {self.name!r} is included in {len(apps)} apps. Say which: app.enqueue(task.bind(…))."
        )

    def include_in(self, app: Holdfast) -> None:
        """Remember an app that includes this task; called by `app.include`."""
        self._included_in.add(app)

    @property
    def args_bytes_max(self) -> int:
        return self._app.args_bytes_max if self._app is not None else ARGS_BYTES_MAX

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Check the arguments and make a call with its id; `app.enqueue(call)` stores it, once however often called."""
        return self._plain.bind(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that calls this task with these arguments."""
        return self.app.enqueue(self._plain.bind(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`."""
        return await self.app.aenqueue(self._plain.bind(*args, **kwargs))

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """This task with options for some calls: queue, priority, group, key, delay, at, id, connection, …"""
        return self._plain.using(**settings)

    def decode(self, args: bytes) -> dict[str, Any]:
        """Stored arguments as keyword arguments, rebuilt from annotations; ArgumentsRejected when they do not fit."""
        return self.codec.decode(args)

    def encode(self, value: Any) -> bytes:
        """A result as JSON; ArgumentsRejected when it cannot be kept."""
        limit = self._app.result_bytes_max if self._app is not None else RESULT_BYTES_MAX
        return self.codec.encode_value(value, limit)

    def decode_value(self, value: bytes) -> Any:
        """A stored result, rebuilt by the return annotation."""
        return self.codec.decode_value(value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        raise ConfigurationError(
            f"task {self.name!r} is not called directly. Use .enqueue(…) to run it in a worker, or .fn(…) to run it here."
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


def _check_function(fn: object) -> FunctionType:
    if not isinstance(fn, FunctionType):
        kind = "a method" if inspect.ismethod(fn) else f"a {type(fn).__name__}"
        raise ConfigurationError(f"a task must be a plain function, not {kind}. Wrap it in a function of its module.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{fn.__qualname__} is a generator; a task returns once. Return a list instead.")
    parameters = list(inspect.signature(fn).parameters)
    owner = fn.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>") and parameters[:1] in (["self"], ["cls"]):
        raise ConfigurationError(f"{fn.__qualname__} is a method; a task must be a plain function of its module.")
    return fn


class NamedTask:
    """A task known by name only, for producers without its code: arguments are checked by the worker that has it."""

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
        stored, placed = split_settings(settings)
        return NamedTask(self._app, self.name, self._options.changed(**stored), self._placement.changed(placed))

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall[Any]:
        raw = encode_unseen(self.name, args, kwargs, self._app.args_bytes_max)
        options, placement = self._options, self._placement
        new = NewJob(
            id=placement.id or new_id(),
            task=self.name,
            queue=options.queue,
            args=raw,
            priority=options.priority,
            group=options.group if isinstance(options.group, str) else None,
            key=options.key if isinstance(options.key, str) else None,
            on_conflict=options.on_conflict,
            delay=placement.delay,
            due_at=placement.due_at,
            expires=options.expires,
            max_stalls=options.max_stalls,
            revival=options.revive,
        )
        return BoundCall(new, placement.connection)

    def enqueue(self, *args: Any, **kwargs: Any) -> Job[Any]:
        return self._app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job[Any]:
        return await self._app.aenqueue(self.bind(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<NamedTask {self.name}>"


class TaskDecorator(Protocol):
    """`@app.task(...)`: strips a leading Context and remembers what an async function returns."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class Tasks:
    """Tasks by name. Stand-alone for reusable modules (`app.include(tasks)`); every app is one."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, Task[..., Any]] = {}

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name."""
        return MappingProxyType(self._tasks)

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task of that name or alias."""
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
