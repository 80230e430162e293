"""One attempt's durable calls (steps, sleeps, waits), replayed: what earlier attempts stored is not done again.

Created by the first such call of an attempt (durable.py); a handler without one never gets here. The calls of a handler
are numbered in the order in which they begin, and compared with what is stored: another name at a number means that the
code has changed under the job. Everything is written as soon as it is known, fenced by the lease.

Each verb is a coroutine. In a sync handler store calls block the thread, so that the coroutine never
suspends and runs to its end in one go (`run_here`).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .codec import Codec, decode_plain, encode_result
from .context import CancelRequested, Snooze
from .errors import ConfigurationError, LeaseLost, SignalTimedOut, StepsChanged
from .names import check_name
from .records import Answer, Held
from .steps import STEPS_MAX, VERSIONS_MAX, NewStep, Step, StepKind, Steps

if TYPE_CHECKING:
    from .app import Holdfast
    from .backends.contract import Backend
    from .context import Context

T = TypeVar("T")
RESULT_BYTES_MAX = 1_048_576
WAIT_SECONDS = 365 * 86_400.0  # a wait without a timeout checks again once a year
STATE_NAME = "state"
MISSING: Any = object()
_FIRST_CALL = threading.Lock()
_IN_STEP: ContextVar[str | None] = ContextVar("holdfast_in_step", default=None)


class WaitsFor(Snooze):
    """A snooze that ends when a signal of that name arrives, or after `seconds`."""

    def __init__(self, seconds: float, signal: str) -> None:
        super().__init__(seconds)
        self.signal = signal


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("a durable call of a sync handler must not suspend")


def of_attempt(context: Context) -> Replay:
    """The durable calls of an attempt: one object, also if threads of its handler make the first calls at once."""
    with _FIRST_CALL:
        if context._replay is None:
            context._replay = Replay(context)
        return context._replay


class Replay:
    """The durable calls of one attempt."""

    def __init__(self, context: Context) -> None:
        task = context._task
        self._context = context
        self._app = None if task is None else task.app  # None: a plain call of the function, outside any job
        self.is_async = _on_a_loop() if task is None else task.is_async
        self._skips_time = self._app is None or self._app._eager is not None
        self._count = itertools.count(1)  # numbers for the calls of this attempt
        self._begun: dict[str, int] = {}  # their numbers, by name
        self._open: dict[str, None] = {}  # begun, and neither over nor failed
        self._loaded_at: float | None = None
        self._store_now = 0.0
        self._by_number: dict[int, Step] = {}
        self._numbers: dict[str, int] = {}
        self._others: dict[tuple[StepKind, str], Step] = {}  # what has no number: signals, versions, the state

    # ------------------------------------------------------------------ the store

    async def _ask(self, app: Holdfast, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        return await app._store.acall(work) if self.is_async else app._store.call(work)

    async def _load(self) -> None:
        """Read what is stored, once per attempt."""
        if self._loaded_at is not None:
            return
        app, job_id, known = self._app, self._context.id, Steps(now=0.0)
        if app is not None:
            known = await self._ask(app, lambda backend: backend.steps(job_id))
        if self._loaded_at is None:  # another call of this attempt may have come first
            self._loaded_at, self._store_now = time.monotonic(), known.now
            for step in known.steps:
                self._remember(step)

    def _remember(self, step: Step) -> None:
        if step.number:
            self._by_number[step.number] = step
            self._numbers[step.name] = step.number
        else:
            self._others[step.kind, step.name] = step

    def _now(self) -> float:
        """The store's clock."""
        return self._store_now + time.monotonic() - (self._loaded_at or 0.0)

    async def _keep(self, new: NewStep) -> None:
        """Store a step; LeaseLost if the lease is no longer ours, and then nothing was stored."""
        lease = self._context._lease
        if self._app is not None:
            held = Held(lease.id, lease.token)
            answer = await self._ask(self._app, lambda backend: backend.checkpoint(held, [new]))
            if answer is not Answer.OK:
                raise LeaseLost(lease.id)
        until = None if new.delay is None else self._now() + new.delay
        step = Step(job_id=lease.id, kind=new.kind, name=new.name, number=new.number, value=new.value, until=until)
        self._remember(step)

    # ------------------------------------------------------------------ the order of calls

    def begin(self, kind: StepKind, name: str | None) -> tuple[int, str]:
        """Number a call, at the moment it is made, and check its name. Threads of one handler may call it at once."""
        inside = _IN_STEP.get()
        if inside is not None:
            raise ConfigurationError(
                f"a step cannot contain another: step {inside!r} is running, and on the next attempt it would not run "
                "again. Call them one after the other in the handler."
            )
        if name is not None:
            self._refuse_twice(check_name(name, f"name of a {kind}"))
        if len(self._begun) >= STEPS_MAX:
            raise ConfigurationError(
                f"a job has at most {STEPS_MAX} steps, sleeps and waits. Do more in one step, or enqueue other jobs."
            )
        number = next(self._count)
        if name is None:
            name = f"{kind}-{number}"
            self._refuse_twice(name)
        self._begun[name] = number
        self._open[name] = None
        return number, name

    def _refuse_twice(self, name: str) -> None:
        if name in self._begun:
            raise ConfigurationError(
                f"step {name!r} was called twice in one attempt. A step is known by its name: give each its own, in a "
                f'loop e.g. f"{name}-{{i}}".'
            )

    async def _known(self, kind: StepKind, name: str, number: int) -> Step | None:
        """What an earlier attempt stored for this call; StepsChanged if that was another one."""
        await self._load()
        found = self._by_number.get(number)
        if found is None:
            if name in self._numbers:
                was = f"{kind} {name!r}, which was number {self._numbers[name]}"
                raise StepsChanged(self._context.id, number, None, was)
            if self._context.cancelled:
                raise CancelRequested
            return None
        if (found.kind, found.name) != (kind, name):
            raise StepsChanged(self._context.id, number, f"{found.kind} {found.name!r}", f"{kind} {name!r}")
        return found

    def _over(self, name: str) -> None:
        self._open.pop(name, None)

    def fault_at_end(self) -> Exception | None:
        """What is wrong if the handler returns now: an unfinished call, or a stored step that was not repeated."""
        if self._open:
            names = ", ".join(map(repr, self._open))
            return ConfigurationError(
                f"the handler returned before {names} was over. In an async handler every step, sleep and wait must be "
                "awaited."
            )
        left = [number for number in self._by_number if number > len(self._begun)]
        if left:
            found = self._by_number[min(left)]
            return StepsChanged(self._context.id, found.number, f"{found.kind} {found.name!r}", None)
        return None

    # ------------------------------------------------------------------ steps

    async def step(self, number: int, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Call the function unless its result is stored; return the result as it is stored."""
        codec = Codec(name, fn, {})
        try:
            found = await self._known("step", name, number)
            if found is not None:
                return codec.decode_value(found.value or b"null")
            with _inside(name):
                if self.is_async and not _is_async(fn):
                    value = await asyncio.to_thread(call)
                else:
                    value = call()
                    if inspect.isawaitable(value):
                        value = await value
            raw = self._encode(f"step {name!r}", value)
            await self._keep(NewStep(kind="step", name=name, number=number, value=raw))
            return codec.decode_value(raw)
        finally:
            self._over(name)

    def _encode(self, what: str, value: Any) -> bytes:
        most = RESULT_BYTES_MAX if self._app is None else self._app.result_bytes_max
        return encode_result(f"{what} of {self._context.task}", value, most)

    # ------------------------------------------------------------------ sleeps and waits

    async def sleep(self, number: int, name: str, seconds: float) -> None:
        """Release the slot until the time is over; then the handler runs again and continues after this call."""
        try:
            found = await self._known("sleep", name, number)
            if found is None:
                await self._keep(NewStep(kind="sleep", name=name, number=number, delay=seconds))
                found = self._by_number[number]
            rest = (found.until or 0.0) - self._now()
            if rest > 0.0 and not self._skips_time:
                raise Snooze(rest)
        finally:
            self._over(name)

    async def wait_for(self, number: int, name: str, timeout: float | None, default: Any) -> Any:
        """The value of a signal; releases the slot until it arrives."""
        try:
            found = await self._known("wait", name, number)
            if found is not None and found.value is not None:
                return self._outcome(name, decode_plain(found.value), timeout, default)
            signal = self._others.get(("signal", name))
            if signal is not None:
                outcome = b"[" + (signal.value or b"null") + b"]"
            elif timeout is not None and (
                self._skips_time or (found is not None and (found.until or 0.0) <= self._now())
            ):
                outcome = b"[]"
            else:
                await self._fall_asleep(number, name, timeout, found)
            await self._keep(NewStep(kind="wait", name=name, number=number, value=outcome))
            return self._outcome(name, decode_plain(outcome), timeout, default)
        finally:
            self._over(name)

    async def _fall_asleep(self, number: int, name: str, timeout: float | None, found: Step | None) -> NoReturn:
        """Store that this lease waits, then snooze. A signal that arrives in between ends the snooze at once."""
        if self._skips_time:
            raise ConfigurationError(
                f"signal {name!r} has not been sent. In app.eager() and in a plain call nothing else happens "
                "meanwhile: send it before, or give a timeout."
            )
        rest = WAIT_SECONDS if timeout is None else timeout
        if timeout is not None and found is not None and found.until is not None:
            rest = found.until - self._now()
        await self._keep(NewStep(kind="wait", name=name, number=number, delay=rest))
        raise WaitsFor(rest, name)

    @staticmethod
    def _outcome(name: str, stored: list[Any], timeout: float | None, default: Any) -> Any:
        if stored:
            return stored[0]
        if default is MISSING:
            raise SignalTimedOut(name, timeout)
        return default

    # ------------------------------------------------------------------ versions and state

    async def version(self, name: str, current: int) -> int:
        """The version of a part of the handler that this job follows: the one current when it first got here.

        1 if it got past here before there was a version.
        """
        check_name(name, "name of a version")
        if isinstance(current, bool) or not isinstance(current, int) or current < 1:
            raise ConfigurationError(f"a version is a whole number from 1, not {current!r}.")
        await self._load()
        found = self._others.get(("version", name))
        if found is not None:
            return int(decode_plain(found.value or b"1"))
        if any(number > len(self._begun) for number in self._by_number):
            return 1
        if sum(kind == "version" for kind, _ in self._others) >= VERSIONS_MAX:
            raise ConfigurationError(f"a job has at most {VERSIONS_MAX} versions. Remove those of code that is gone.")
        await self._keep(NewStep(kind="version", name=name, value=str(current).encode()))
        return current

    async def state(self) -> Any:
        await self._load()
        found = self._others.get(("state", STATE_NAME))
        return None if found is None else decode_plain(found.value or b"null")

    @property
    def is_loaded(self) -> bool:
        return self._loaded_at is not None

    async def save(self, state: Any) -> None:
        raw = self._encode("the state", state)
        await self._load()
        await self._keep(NewStep(kind="state", name=STATE_NAME, value=raw))


@contextmanager
def _inside(name: str) -> Iterator[None]:
    token = _IN_STEP.set(name)
    try:
        yield
    finally:
        _IN_STEP.reset(token)


def _is_async(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
