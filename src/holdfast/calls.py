"""One call on its way to the store: its options, its group and key, and the job as stored.

Called by tasks and the app. Binding is pure; functions that talk to the store take the open backend as their last
argument and run on the store thread. Arguments are inspected only by the group and key callables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .clock import Clock, to_seconds
from .codec import Codec
from .errors import ArgumentsRejected, BackendError, ConfigurationError
from .ids import new_id
from .job import BoundCall
from .keywords import nearest
from .lifecycle import State
from .names import check_name
from .options import (
    CALL_OPTIONS,
    Chooser,
    Duration,
    OnConflict,
    QueueOptions,
    TaskOptions,
    encode_call_options,
    how_held,
)
from .rates import Rate
from .records import Enqueued, JobRecord, KeyScope, KeyUntil, NewJob, OnExpire, Revival
from .retry import Backoff, RetryPolicy

if TYPE_CHECKING:
    from .backends.contract import Backend

AT_MAX = datetime(3000, 1, 1, tzinfo=UTC).timestamp()  # beyond this, the calendars of some stores and of Python end


class TaskSettings(TypedDict, total=False):
    """The keyword arguments of `@app.task(...)`; TaskOptions holds the validated forms."""

    name: str
    queue: str | QueueOptions
    priority: int
    group: Chooser | None
    key: Chooser | None
    on_conflict: OnConflict
    key_scope: KeyScope
    key_until: KeyUntil | None
    window: Duration | None
    wait: Duration | None
    wait_max: Duration | None
    retry: RetryPolicy | int | Backoff | None
    timeout: Duration | None
    max_stalls: int
    isolation: Literal["none", "process"]
    memory_limit: int | None
    cpu_limit: Duration | None
    file_limit: int | None
    expires: Duration | None
    on_expire: OnExpire
    retain: Duration
    retain_count: int | None
    retain_dead: Duration | None
    retain_dead_count: int | None
    rate: str | Rate | None
    limit: int | None
    aliases: str | Iterable[str]
    revive: Revival | None


class UsingSettings(TypedDict, total=False):
    """The keyword arguments of `.using(...)`: what is stored with a single job."""

    queue: str | QueueOptions
    priority: int
    group: Chooser | None
    key: Chooser | None
    on_conflict: OnConflict
    key_scope: KeyScope
    key_until: KeyUntil | None
    window: Duration | None
    wait: Duration | None
    wait_max: Duration | None
    max_stalls: int
    expires: Duration | None
    on_expire: OnExpire
    revive: Revival | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    retain: Duration
    id: str
    delay: Duration | None
    at: datetime | None
    connection: Any


_PLACED = frozenset({"id", "delay", "at", "connection"})
_STORED = frozenset(UsingSettings.__annotations__) - _PLACED


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """When one call is due, under which id, and on whose connection it is stored."""

    id: str | None = None
    delay: float | None = None
    due_at: float | None = None
    connection: Any = None
    own: frozenset[str] = frozenset()  # which of retry, timeout, retain were given for this call only
    options: bytes | None = None  # those options, as stored

    def changed(self, given: Mapping[str, Any], own: frozenset[str], options: bytes | None) -> Placement:
        """This placement updated with the `.using` settings, validated."""
        delay, at = given.get("delay"), given.get("at")
        if delay is not None and at is not None:
            raise ConfigurationError("delay= and at= exclude each other. Give one of them.")
        if at is not None and (not isinstance(at, datetime) or at.utcoffset() is None):
            raise ConfigurationError(
                "at= takes an aware datetime, such as datetime.now(UTC) + timedelta(hours=1). "
                "A naive one does not say which clock it means."
            )
        if at is not None and at.timestamp() > AT_MAX:
            raise ConfigurationError("at= lies beyond the year 2999. Give a time that somebody will wait for.")
        timed = delay is not None or at is not None
        return Placement(
            id=check_name(given["id"], "id") if given.get("id") is not None else self.id,
            delay=to_seconds(delay, "delay=") if delay is not None else None if timed else self.delay,
            due_at=at.timestamp() if at is not None else None if timed else self.due_at,
            connection=given.get("connection", self.connection),
            own=own,
            options=options,
        )


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `.using` settings into stored task options and placement; reject any others and give the reason."""
    stored: dict[str, Any] = {}
    placed: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _STORED:
            stored[name] = value
        elif name in _PLACED:
            placed[name] = value
        elif name in TaskSettings.__annotations__:
            raise ConfigurationError(f"{name}= belongs to the task, not to one call. Set it where the task is defined.")
        else:
            known = ", ".join(sorted(UsingSettings.__annotations__))
            near = nearest(name, UsingSettings.__annotations__)
            raise ConfigurationError(f".using() has no {name}=.{near} It takes {known}.")
    return stored, placed


def refine(options: TaskOptions, placement: Placement, settings: Mapping[str, Any]) -> tuple[TaskOptions, Placement]:
    """Options and placement updated with the `.using` settings, validated."""
    stored, placed = split_settings(settings)
    options = options.changed(**stored)
    own = placement.own | (stored.keys() & CALL_OPTIONS)
    placement = placement.changed(placed, own, encode_call_options(options, own))
    if options.wait is not None and (placement.delay is not None or placement.due_at is not None):
        raise ConfigurationError('on_conflict="debounce" is due wait= seconds after the latest call. Leave out delay=.')
    return options, placement


Choice = Callable[[Mapping[str, Any]], str]


def compile_chooser(chooser: Chooser, what: str, codec: Codec) -> Choice:
    """Compile a group or key into a function of the bound arguments; its parameters are checked here, once."""
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


def make_job(
    task: str, raw: bytes, options: TaskOptions, placement: Placement, *, group: str | None, key: str | None
) -> NewJob:
    """Build the job for a call, including its id."""
    held = how_held(options, task, key)
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
        options=placement.options,
    )


def fresh_record(new: NewJob, id: str, now: float, state: State | None = None) -> JobRecord:
    """A job that was just stored, as far as its producer knows without reading it back."""
    due_at = new.due_at if new.due_at is not None else now + (new.delay or 0.0)
    if state is None:
        state = State.SCHEDULED if due_at > now else State.READY
    return JobRecord(
        id=id,
        seq=0,
        task=new.task,
        queue=new.queue,
        state=state,
        args=new.args,
        priority=new.priority,
        group=new.group,
        key=new.key,
        max_stalls=new.max_stalls,
        created_at=now,
        due_at=max(due_at, now),
        expires_at=None if new.expires is None else due_at + new.expires,
        revival=new.revival,
        options=new.options,
        key_scope=new.key_scope,
        key_until=new.key_until,
        key_window=new.key_window,
        holds_key=new.key is not None,
        due_max=None if new.wait_max is None else now + new.wait_max,
        on_expire=new.on_expire,
    )


async def store(new: NewJob, clock: Clock, backend: Backend) -> tuple[JobRecord, Enqueued]:
    answer = (await backend.enqueue([new]))[0]
    if is_known(new, answer):
        return fresh_record(new, answer.id, clock.wall()), answer
    return await look_at(new, answer, clock, backend), answer


def is_known(new: NewJob, answer: Enqueued) -> bool:
    """Whether reading the job back would tell the producer nothing new."""
    return answer.created and new.group is None


async def look_at(new: NewJob, answer: Enqueued, clock: Clock, backend: Backend) -> JobRecord:
    """Read the job from the store."""
    try:
        record = await backend.get(answer.id)
    except BackendError:  # it is stored: a failed read must not make the caller enqueue it again
        record = None
    return record or fresh_record(new, answer.id, clock.wall())


async def store_many(chunk: Sequence[BoundCall[Any]], backend: Backend) -> list[bool]:
    return [answer.created for answer in await backend.enqueue([call.new for call in chunk])]
