"""Task and its decorator: a registered function whose calls can be bound, validated and enqueued; and the job a call
becomes.

Called by the app, by users' modules and by the worker (decode, encode, options). Binding is pure; I/O happens only in
`enqueue` and `aenqueue`, through the app the task belongs to.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from types import FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .clock import to_seconds
from .codec import CatchAllCodec, Codec, OpenCodec, read_parameters, signature_of
from .context import CURRENT, Context
from .dependencies import (
    BATCH_OPEN_TASK,
    BATCH_TASK,
    ON_PARENT_FAILURE,
    PARENTS_MAX,
    OnParentFailure,
)
from .errors import ConfigurationError, InvalidArguments, TaskAlreadyRegistered
from .headers import TAGS, check_headers, check_tags, with_parents, with_results
from .job import BoundCall, Job
from .names import (
    check_name,
    check_text,
    default_task_name,
    nearest,
    new_id,
    once_public,
    process_signature,
    renamed,
    this_process,
)
from .options import (
    ARGS_BYTES_MAX,
    CALL_OPTIONS,
    NO_KEY,
    RESULT_BYTES_MAX,
    Chooser,
    OrderChooser,
    TaskOptions,
    encode_call_options,
    how_held,
    one_of,
    order_number,
    ungrouped,
)
from .placeholders import AwaitsResults
from .records import BY_CHARS_MAX, Lease, NewJob
from .task_settings import TaskSettings as TaskSettings
from .task_settings import UsingSettings as UsingSettings

if TYPE_CHECKING:
    from .app import Holdfast
    from .batch_calls import AsyncBatch, Batch, Results

    class Untyped:
        """Matches an unannotated first parameter, which a type checker would otherwise take for a Context and drop."""

# ----------------------------------------------------------------------------------------------------------------------
# One call on its way to the store: its options, its group and key, and the job as stored. Arguments are inspected only
# by the group and key callables.


CAUGHT_NAMES_MAX = 1000  # of unknown tasks, whose catch-all is remembered
AT_MAX = datetime(3000, 1, 1, tzinfo=UTC).timestamp()  # beyond this, the calendars of some stores and of Python end


_FAMILIES = frozenset({"unique", "retention"})
_PLACED = frozenset({"id", "delay", "at", "connection", "headers", "tags", "by", "after", "on_parent_failure"})
_STORED = frozenset(UsingSettings.__annotations__) - _PLACED - _FAMILIES


def check_at(at: object) -> float:
    """The seconds of an aware datetime."""
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigurationError(
            "at= takes an aware datetime, such as datetime.now(UTC) + timedelta(hours=1). "
            "A naive one does not say which clock it means."
        )
    if at.timestamp() > AT_MAX:
        raise ConfigurationError("at= lies beyond the year 2999. Give an earlier time.")
    return at.timestamp()


def check_after(value: object) -> tuple[str, ...]:
    """The ids of the jobs that a call waits for, without duplicates."""
    if value is None:
        return ()
    if isinstance(value, str | Job | BoundCall) or not isinstance(value, Iterable):
        raise ConfigurationError(f"after= takes a list of jobs, bound calls or ids, not a {type(value).__name__}.")
    ids: dict[str, None] = {}
    for one in value:
        if not isinstance(one, str | Job | BoundCall):
            raise ConfigurationError(f"after= takes jobs, bound calls and ids, not a {type(one).__name__}.")
        ids[check_name(one if isinstance(one, str) else one.id, "id in after=")] = None
    if len(ids) > PARENTS_MAX:
        raise ConfigurationError(f"a job waits for at most {PARENTS_MAX} others, and {len(ids)} were given.")
    return tuple(ids)


class Placement(Struct, frozen=True, kw_only=True):
    """When one call is due and after which others, under which id, and on whose connection it is stored."""

    id: str | None = None
    delay: float | None = None
    due_at: float | None = None
    connection: Any = None
    own: frozenset[str] = frozenset()  # which of retry, timeout, retain were given for this call only
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    by: str = ""  # who enqueues; empty: this process, or the job that it runs
    after: tuple[str, ...] = ()
    on_parent_failure: OnParentFailure = "bury"
    options: bytes | None = None  # those options, the headers, `by` and the number of parents, as stored

    def changed(self, given: Mapping[str, Any], own: frozenset[str], options: TaskOptions) -> Placement:
        """This placement updated with the `.using` settings, validated. Headers are added to those given before."""
        delay, at = given.get("delay"), given.get("at")
        if delay is not None and at is not None:
            raise ConfigurationError("delay= and at= exclude each other. Give one of them.")
        due_at = None if at is None else check_at(at)
        timed = delay is not None or at is not None
        headers = self.headers
        if "headers" in given:
            headers = check_headers({**headers, **check_headers(given["headers"])})
        if "tags" in given:
            headers = check_headers({**headers, TAGS: check_tags(given["tags"])})
        by = check_text(given.get("by", self.by), "by")[:BY_CHARS_MAX]
        after = check_after(given["after"]) if "after" in given else self.after
        policy = self.on_parent_failure
        if "on_parent_failure" in given:
            one_of(given["on_parent_failure"], "on_parent_failure=", ON_PARENT_FAILURE)
            policy = given["on_parent_failure"]
        return Placement(
            id=check_name(given["id"], "id") if given.get("id") is not None else self.id,
            delay=to_seconds(delay, "delay=") if delay is not None else None if timed else self.delay,
            due_at=due_at if at is not None else None if timed else self.due_at,
            connection=given.get("connection", self.connection),
            own=own,
            headers=headers,
            by=by,
            after=after,
            on_parent_failure=policy,
            options=encode_call_options(options, own, headers, by, len(after)),
        )

    def awaiting(self, parents: Iterable[str]) -> Placement:
        """This placement of a call that takes the results of these jobs, and so comes after them, too."""
        after = check_after([*self.after, *parents])
        return replace(self, after=after, options=with_results(with_parents(self.options, len(after))))


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `.options` settings into stored task options and placement; reject any others and give the reason."""
    stored: dict[str, Any] = {}
    placed: dict[str, Any] = {}
    for name, value in ungrouped(settings).items():
        if name in _STORED:
            stored[name] = value
        elif name in _PLACED:
            placed[name] = value
        elif name in TaskSettings.__annotations__ or name in ("batch", "batch_of"):
            raise ConfigurationError(f"{name}= belongs to the task, not to one call. Set it where the task is defined.")
        else:
            known = ", ".join(sorted(UsingSettings.__annotations__))
            near = nearest(name, UsingSettings.__annotations__)
            raise ConfigurationError(f".options() has no {name}=.{near} It takes {known}.")
    return stored, placed


def refine(options: TaskOptions, placement: Placement, settings: Mapping[str, Any]) -> tuple[TaskOptions, Placement]:
    """Options and placement updated with the `.options` settings, validated."""
    stored, placed = split_settings(settings)
    options = options.changed(**stored)
    own = placement.own | (stored.keys() & CALL_OPTIONS)
    placement = placement.changed(placed, own, options)
    if options.wait is not None and (placement.delay is not None or placement.due_at is not None):
        raise ConfigurationError('on_conflict="debounce" is due wait= seconds after the latest call. Leave out delay=.')
    return options, placement


V = TypeVar("V")
Choice = Callable[[Mapping[str, Any]], V]


def compile_chooser(chooser: Chooser, what: str, codec: Codec) -> Choice[str]:
    """Compile a group or key into a function of the bound arguments; its parameters are checked here, once."""
    if isinstance(chooser, str):
        fixed = chooser
        return lambda given: fixed
    return _compiled(chooser, what, codec, check_name)


def compile_order(chooser: OrderChooser, codec: Codec) -> Choice[int | None]:
    """The same for an order; None means that jobs have none."""
    if not callable(chooser):
        fixed = order_number(chooser)
        return lambda given: fixed
    return _compiled(
        chooser, "order", codec, lambda chosen, what: None if chosen is None else order_number(chosen, what)
    )


def _compiled(call: Callable[..., Any], what: str, codec: Codec, check: Callable[[Any, str], V]) -> Choice[V]:
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
                f"task {codec.task!r}: its {what} callable takes {parameter.name!r}, which is not a parameter of the "
                f"task. It has: {', '.join(codec.names) or 'none'}."
            )
    names, defaults = tuple(wanted), codec.defaults

    def answer(given: Mapping[str, Any]) -> V:
        try:
            chosen = call(**{name: given[name] if name in given else defaults[name] for name in names})
        except Exception as error:
            raise InvalidArguments(codec.task, f"its {what} callable raised {type(error).__name__}") from error
        return check(chosen, f"{what} of task {codec.task!r}")

    return answer


def make_job(
    task: str,
    raw: bytes,
    options: TaskOptions,
    placement: Placement,
    *,
    group: str | None,
    order: int | None,
    key: str | None,
) -> NewJob:
    """Build the job for a call, including its id."""
    held = NO_KEY if key is None else how_held(options, task, key)
    if placement.after and held.on_conflict in ("replace", "debounce", "extend"):
        raise ConfigurationError(
            f"after= and on_conflict={options.on_conflict!r} do not go together: a job that waits for others is not "
            'changed by a later call. Use on_conflict="keep" or "raise".'
        )
    return NewJob(
        id=placement.id or new_id(),
        task=task,
        queue=options.queue,
        args=raw,
        priority=options.priority,
        group=held.group or group,
        key=key,
        on_conflict=held.on_conflict,
        key_scope=held.key_scope,
        key_until=held.key_until,
        key_window=held.key_window,
        delay=placement.delay if held.delay is None else held.delay,
        due_at=placement.due_at,
        wait_max=held.wait_max,
        expires=options.expires,
        on_expire=options.on_expire,
        max_stalls=options.max_stalls,
        revival=options.revive,
        options=stored_options(placement),
        order=order,
        after=placement.after,
        on_parent_failure=placement.on_parent_failure,
    )


def stored_options(placement: Placement) -> bytes | None:
    """A call's options as stored, including who enqueues it."""
    return placement.options if placement.by else signed(placement.options)


def signed(options: bytes | None) -> bytes:
    """A call's stored options with who enqueues it: the job whose handler this is, or this process."""
    context = CURRENT.get()
    if context is None:
        sign = process_signature()
    else:
        sign = msgspec.json.encode({"by": f"job {context.id} on {this_process().partition(' ')[0]}"})
    return sign if options is None else b"%b,%b" % (options[:-1], sign[1:])


# ----------------------------------------------------------------------------------------------------------------------
# Tasks


P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
K = TypeVar("K", covariant=True)


class Using(Generic[P, R]):
    """A task with options for some of its calls. Frozen; `options` returns a refined copy."""

    __slots__ = ("_alike", "_group", "_key", "_options", "_order", "_placement", "_task")

    def __init__(self, task: Task[P, R], options: TaskOptions, placement: Placement) -> None:
        self._task = task
        self._alike: NewJob | None = None  # the first call without a key: further ones differ in a few fields
        self._options = options
        self._placement = placement
        self._group = None if options.group is None else compile_chooser(options.group, "group", task._codec)
        self._order = None if options.order is None else compile_order(options.order, task._codec)
        self._key = None if options.key is None else compile_chooser(options.key, "key", task._codec)

    def options(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """A copy with more options."""
        return Using(self._task, *refine(self._options, self._placement, settings))

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """The former name of `options`."""
        renamed(".using(…)", ".options(…)")
        return self.options(**settings)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Validate the arguments and make a call with its id; nothing is stored."""
        task, options, placement = self._task, self._options, self._placement
        given = task._codec.bind(args, kwargs)
        try:
            raw = task._codec.encode(given, task._args_bytes_max)
        except AwaitsResults as fault:
            if task.is_batch:
                why = "a batch handler gets its calls as they were stored: use after=, and call.parents in the handler"
                raise InvalidArguments(task.name, why) from fault
            raw, parents = task._codec.encode_awaiting(given, task._args_bytes_max)
            placement = placement.awaiting(parents)
        group = None if self._group is None else self._group(given)
        order = None if self._order is None else self._order(given)
        is_plain = placement is self._placement
        if is_plain and self._alike is not None:
            id, stored = placement.id or new_id(), stored_options(placement)
            new = msgspec.structs.replace(self._alike, id=id, args=raw, group=group, order=order, options=stored)
            return BoundCall(new, placement.connection)
        key = None if self._key is None else self._key(given)
        new = make_job(task.name, raw, options, placement, group=group, order=order, key=key)
        if is_plain and self._key is None:
            self._alike = msgspec.structs.replace(new, args=b"")
        return BoundCall(new, placement.connection)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that calls the task with these arguments."""
        return self._task.app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Async version of `enqueue`."""
        return await self._task.app.aenqueue(self.bind(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<{self._task.name} with options>"


class CallOptions(Generic[P, R]):
    """What `task.options` is: called, the task with options for some calls."""

    __slots__ = ("_task",)

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def __call__(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """This task with options for some calls: queue, priority, group, key, delay, at, id, connection, …"""
        return self._task._plain.options(**settings)

    def __getattr__(self, name: str) -> Any:
        """The former `task.options.queue`, now `task.defaults.queue`."""
        value = getattr(self._task.defaults, name)
        renamed(f"task.options.{name}", f"task.defaults.{name}")
        return value


class Task(Generic[P, R]):
    """A registered function. `fn` is the function itself."""

    def __init__(self, fn: Callable[..., Any], options: TaskOptions, app: Holdfast | None = None) -> None:
        function = _check_function(fn)
        self.name: str = options.name or default_task_name(function)
        self.fn = fn
        self.defaults = options.changed(name=self.name)  # the options of a call that sets none
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.is_batch: bool = options.batch is not None  # its handler takes several jobs at once
        self._wants_context, parameters = read_parameters(fn, self.name)
        self._codec = _batch_codec(self, parameters) if self.is_batch else Codec(self.name, fn, parameters)
        if options.catch_all and len(parameters) != 2:
            raise ConfigurationError(
                f"task {self.name!r}: a catch-all takes two parameters, after an optional Context: the name of "
                "the task that was called, and its arguments by name, as a dict."
            )
        self._app = app
        self._included_in: weakref.WeakSet[Holdfast] = weakref.WeakSet()
        self._plain: Using[P, R] = Using(self, self.defaults, Placement())
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

    def _include_in(self, app: Holdfast) -> None:
        """Remember an app that includes this task; called by `app.include`."""
        self._included_in.add(app)

    def _sole_app(self) -> Holdfast | None:
        return self._app or (next(iter(self._included_in), None) if len(self._included_in) == 1 else None)

    @property
    def _args_bytes_max(self) -> int:
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

    @property
    def options(self) -> CallOptions[P, R]:
        """`task.options(delay=60).enqueue(…)`: this task with options for some calls."""
        return CallOptions(self)

    def using(self, **settings: Unpack[UsingSettings]) -> Using[P, R]:
        """The former name of `options`."""
        renamed(".using(…)", ".options(…)")
        return self._plain.options(**settings)

    def _decode(self, args: bytes) -> dict[str, Any]:
        """Stored arguments as keyword arguments, rebuilt from annotations; InvalidArguments if they do not fit."""
        return self._codec.decode(args)

    def _as(self, name: str) -> Task[..., Any]:
        """This catch-all as the task of that name, which the app does not know."""
        caught = copy.copy(self)
        caught.name, caught._codec = name, CatchAllCodec(name, self._codec)
        return caught

    def _encode(self, value: Any) -> bytes:
        """A result as JSON; InvalidResult if it cannot be stored."""
        app = self._sole_app()
        return self._codec.encode_value(value, RESULT_BYTES_MAX if app is None else app.result_bytes_max)

    def _decode_value(self, value: bytes) -> Any:
        """A stored result, rebuilt from the return annotation."""
        return self._codec.decode_value(value)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now, as a plain call: no job, no retry. Of an async task, a coroutine to await.

        A task that takes a Context gets that of the running job or, outside of jobs, one with a new id.
        """
        if not self._wants_context:
            return self.fn(*args, **kwargs)
        lease = Lease(new_id(), "", 0, self.name, self.defaults.queue, b"{}")
        return self.fn(CURRENT.get() or Context(lease), *args, **kwargs)

    if not TYPE_CHECKING:
        __getattr__ = once_public("task", "codec decode decode_value encode include_in wants_context")

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


def _batch_codec(task: Task[..., Any], parameters: Mapping[str, inspect.Parameter]) -> Codec:
    """The codec of one call's arguments: those of `batch_of`, or any by name."""
    if len(parameters) != 1:
        raise ConfigurationError(
            f"task {task.name!r}: a batch handler takes one parameter, the list of its calls, after an optional "
            "Context. Declare the arguments of one call with batch_of=."
        )
    if (made_by := task.defaults.batch_of) is None:
        return OpenCodec(task.name, task.fn)
    return Codec(task.name, made_by, read_parameters(made_by, task.name)[1], task.fn)


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


class TaskDecorator(Generic[K]):
    """`@app.task(...)`: its type drops a leading Context and keeps an async function's return type.

    K is None, or what makes a batch handler's arguments. One class for both, so that type checkers which cannot tell
    them apart (`**settings: Any`) still know what a plain task is. A protocol would cost mypy a minute."""

    __slots__ = ("_options", "_router")

    def __init__(self, router: TaskRouter, options: TaskOptions) -> None:
        self._router, self._options = router, options

    @overload
    def __call__(
        self: TaskDecorator[None], fn: Callable[Concatenate[Untyped, ...], Coroutine[Any, Any, R]], /
    ) -> Task[..., R]: ...
    @overload
    def __call__(
        self: TaskDecorator[None], fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self: TaskDecorator[None], fn: Callable[Concatenate[Untyped, ...], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self: TaskDecorator[None], fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self: TaskDecorator[None], fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self: TaskDecorator[None], fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self: TaskDecorator[Callable[P, A]], fn: AsyncBatch[A, None], /) -> Task[P, None]: ...
    @overload
    def __call__(self: TaskDecorator[Callable[P, A]], fn: AsyncBatch[A, Results[R] | None], /) -> Task[P, R]: ...
    @overload
    def __call__(self: TaskDecorator[Callable[P, A]], fn: Batch[A, None], /) -> Task[P, None]: ...
    @overload
    def __call__(self: TaskDecorator[Callable[P, A]], fn: Batch[A, Results[R] | None], /) -> Task[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._router._decorate(fn, self._options)


class TaskRouter:
    """Tasks by name. Standalone in reusable modules (`app.include(tasks)`); every app is one, too."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, Task[..., Any]] = {}
        self._catch_all: Task[..., Any] | None = None
        self._caught: dict[str, Task[..., Any]] = {}  # by the name of a task that is not known

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name."""
        return MappingProxyType(self._tasks)

    @property
    def _catches_all(self) -> bool:
        """Whether one of the tasks has `catch_all=True`."""
        return self._catch_all is not None

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task with that name or alias."""
        found = self._tasks.get(name) or self._aliases.get(name)
        return self._task_of_batches(name) if found is None and name in (BATCH_TASK, BATCH_OPEN_TASK) else found

    def _find_handler(self, name: str) -> Task[..., Any] | None:
        """The task that runs jobs of that name: the one that has it, else the catch-all."""
        return self.find_task(name) or (None if self._catch_all is None else self._catching(self._catch_all, name))

    def _catching(self, catch_all: Task[..., Any], name: str) -> Task[..., Any]:
        found = self._caught.get(name)
        if found is None:
            if len(self._caught) >= CAUGHT_NAMES_MAX:
                self._caught.clear()
            found = self._caught[name] = catch_all._as(name)
        return found

    def _task_of_batches(self, name: str) -> Task[..., Any] | None:
        """Every app knows the tasks of batches."""
        return None

    @overload
    def task(self, fn: Callable[Concatenate[Untyped, ...], Coroutine[Any, Any, R]], /) -> Task[..., R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Untyped, ...], R], /) -> Task[..., R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **settings: Unpack[TaskSettings]) -> TaskDecorator[None]: ...
    @overload
    def task(
        self, /, *, batch: int, batch_of: Callable[P, A], **settings: Unpack[TaskSettings]
    ) -> TaskDecorator[Callable[P, A]]: ...
    @overload
    def task(self, /, *, batch: int, **settings: Unpack[TaskSettings]) -> TaskDecorator[Callable[..., Any]]: ...
    def task(self, fn: Any = None, /, **settings: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue=…, retry=…, …)`."""
        if isinstance(fn, str):
            raise ConfigurationError(f"@app.task({fn!r}): give the name as name={fn!r}.")
        options = TaskOptions.make(**settings)
        if fn is not None:
            return self._decorate(fn, options)
        return TaskDecorator(self, options)

    def _decorate(self, fn: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        task: Task[..., Any] = Task(fn, options, self._own_app())
        self._register(task)
        return task

    def _own_app(self) -> Holdfast | None:
        return None

    def _register(self, task: Task[..., Any]) -> None:
        for name in dict.fromkeys((task.name, *task.defaults.aliases)):
            if self.find_task(name) is not None:
                raise TaskAlreadyRegistered(name)
        if task.defaults.catch_all:
            if self._catch_all is not None:
                raise ConfigurationError(
                    f"task {task.name!r}: {self._catch_all.name!r} is the catch-all already, and an app has one. "
                    "Leave out catch_all= in one of them."
                )
            self._catch_all = task
        self._tasks[task.name] = task
        for alias in task.defaults.aliases:
            self._aliases[alias] = task


Tasks = TaskRouter  # the former name
