"""A producer's half of the app: enqueue bound calls, one or many, also in the caller's transaction; wait for results.

Inherited by `Holdfast`; each method has an `a…` twin for async code. Calls were validated when they were bound; here
they are stored, in steps of bounded size. Functions that take the open backend as their last argument run on the store
thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec.structs import replace

from . import events, records
from .backends.caller_connections import is_begun, recognise
from .clock import Clock
from .codec import decode_plain
from .dependencies import PARENTS_MAX, Relatives
from .errors import BackendError, ConfigurationError, JobCancelled, JobDied
from .headers import check_headers, with_headers
from .hooks import Hooks
from .job import BoundCall, Enqueued, Job, fresh_record
from .lazy import import_lazily
from .lifecycle import State
from .observer import JobOrId, checked_by, job_id
from .operator import Operator
from .options import Duration
from .records import JobRecord, NewJob
from .results import JobFollower, Step
from .steps import Step as StoredStep
from .store_thread import HAND_OVER_SECONDS, StoreHandle, forbid_running_loop
from .task import TaskRouter

if TYPE_CHECKING:
    import asyncio
    from typing import Unpack

    from . import batches, flows, topics
    from .app import Holdfast
    from .backends.contract import Backend
    from .batches import Batch, BatchSettings
    from .eager import Eager
    from .flows import Flow, FlowRun
    from .task import Task, UsingSettings
else:
    import_lazily(globals(), "asyncio", ".batches", ".flows", ".topics")

R = TypeVar("R")
T = TypeVar("T")


class Producer(TaskRouter, Operator):
    """The producer's half of an app."""

    _hub: events.Hub
    _hooks: Hooks
    _eager: Eager | None = None  # inside app.eager()
    result_bytes_max: int
    _batch_tasks: Mapping[str, Task[..., Any]] | None = None  # those of batches themselves, by name

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """Store a bound call; repeating it creates no second job. With a connection: in the caller's transaction."""
        connection = checked(call).connection if connection is None else connection
        if self._hooks.on_enqueue:
            call = self._headed(call)
        if self._eager is not None:
            return self._run_eagerly(self._eager, call)
        if connection is not None:
            return self._stored(call, *join(self._store, connection, [call])[0])
        forbid_running_loop("enqueue()", "aenqueue()")
        gate, new = self._store, call.new
        backend = gate.opened_here()
        made = None if backend is None else backend.enqueue_here([new])
        if made is None:
            return self._stored(call, *gate.call(partial(store, new, gate.clock)))
        [answer] = made
        if answer.created and not waits_by_rule(new):
            return self._stored(call, partial(fresh_record, new, answer, gate.clock.wall()), answer)
        return self._stored(call, gate.call(partial(look_at, new, answer, gate.clock)), answer)

    async def aenqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """Async version of `enqueue`."""
        connection = checked(call).connection if connection is None else connection
        if self._hooks.on_enqueue:
            call = self._headed(call)
        if self._eager is not None:
            return await self._arun_eagerly(self._eager, call)
        if connection is not None:
            return self._stored(call, *(await ajoin(self._store, connection, [call]))[0])
        gate, new = self._store, call.new
        backend = gate.opened
        if backend is not None and backend.any_loop:
            return self._stored(call, *await store(new, gate.clock, backend))
        return self._stored(call, *await gate.acall(partial(store, new, gate.clock)))

    def _run_eagerly(self, eager: Eager, call: BoundCall[R]) -> Job[R]:
        forbid_running_loop("enqueue()", "aenqueue()")
        job = self._stored(call, *self._store.call(partial(store, call.new, self._store.clock)))
        eager.run()
        return job.refresh()

    async def _arun_eagerly(self, eager: Eager, call: BoundCall[R]) -> Job[R]:
        job = self._stored(call, *await self._store.acall(partial(store, call.new, self._store.clock)))
        await eager.arun(job)
        return await job.arefresh()

    def _headed(self, call: BoundCall[R]) -> BoundCall[R]:
        """The call with what the functions of `@app.on_enqueue` make of its headers, here in the caller's context."""
        before = call.headers
        headers = dict(before)
        for hook in self._hooks.on_enqueue:
            hook(call, headers)
        if headers == before:
            return call
        options = with_headers(call.new.options, check_headers(headers))
        return BoundCall(replace(call.new, options=options), call.connection)

    def _chunk(self, chunk: list[BoundCall[Any]]) -> list[BoundCall[Any]]:
        return [self._headed(call) for call in chunk] if self._hooks.on_enqueue else chunk

    def _stored(
        self, call: BoundCall[R], record: JobRecord | Callable[[], JobRecord], answer: records.Enqueued
    ) -> Job[R]:
        if answer.created and self._hub.wanted("enqueued"):
            self._tell_enqueued(call.new)
        app: Holdfast = self  # type: ignore[assignment]
        return Job(app, record, created=answer.created, replaced=answer.replaced)

    def _tell_enqueued(self, new: NewJob) -> None:
        self._hub.emit(events.Enqueued(job_id=new.id, task=new.task, queue=new.queue, group=new.group))

    def enqueue_many(self, calls: Iterable[BoundCall[Any]]) -> Enqueued:
        """Store many bound calls, up to 1000 per step; returns how many were created and how many already existed.

        Calls of one step may name each other with `after=`, in any order.
        """
        if isinstance(calls, AsyncIterable):
            raise ConfigurationError("enqueue_many() was given an async iterable. Use `await app.aenqueue_many()`.")
        created = total = 0
        under_way: list[Callable[[], int]] = []  # at most one step in flight while the calls of the next are being made
        try:
            for chunk in chunks(calls):
                while under_way:
                    created += under_way.pop()()
                under_way.append(self._begin_chunk(self._chunk(chunk)))
                total += len(chunk)
        finally:  # also if making a call raised: wait for the step in flight and emit its events
            while under_way:
                created += under_way.pop()()
        if self._eager is not None:
            self._eager.run()
        return Enqueued(created, total - created)

    def _begin_chunk(self, chunk: list[BoundCall[Any]]) -> Callable[[], int]:
        connection = shared_connection(chunk)
        if connection is not None and self._eager is None:
            made = self._reported(chunk, [answer.created for _, answer in join(self._store, connection, chunk)])
            return lambda: made
        forbid_running_loop("enqueue_many()", "aenqueue_many()")
        answer = self._store.begin(partial(store_many, chunk))
        return lambda: self._reported(chunk, answer())

    async def aenqueue_many(self, calls: Iterable[BoundCall[Any]] | AsyncIterable[BoundCall[Any]]) -> Enqueued:
        """Like `enqueue_many`; also takes async iterables."""
        created = total = 0
        under_way: list[asyncio.Task[int]] = []
        try:
            async for chunk in achunks(calls):
                while under_way:
                    created += await under_way.pop()
                step = asyncio.create_task(self._astore_chunk(self._chunk(chunk)))
                under_way.append(step)
                # The caller gets its own connection back before the next call is made.
                alone = chunk[0].connection is not None
                await asyncio.wait([step], timeout=None if alone else HAND_OVER_SECONDS)
                total += len(chunk)
        except asyncio.CancelledError:
            for step in under_way:
                step.cancel()
            raise
        finally:
            while under_way:
                created += await under_way.pop()
        if self._eager is not None:
            await self._eager.arun()
        return Enqueued(created, total - created)

    async def _astore_chunk(self, chunk: list[BoundCall[Any]]) -> int:
        connection = shared_connection(chunk)
        if connection is not None and self._eager is None:
            joined = await ajoin(self._store, connection, chunk)
            return self._reported(chunk, [answer.created for _, answer in joined])
        return self._reported(chunk, await self._store.acall(partial(store_many, chunk)))

    def _reported(self, chunk: list[BoundCall[Any]], made: list[bool]) -> int:
        if self._hub.wanted("enqueued"):
            for call, created in zip(chunk, made, strict=True):
                if created:
                    self._tell_enqueued(call.new)
        return sum(made)

    def publish(
        self, topic: str, payload: Mapping[str, Any] | None = None, /, **settings: Unpack[UsingSettings]
    ) -> Enqueued:
        """Enqueue a job of every task that subscribes to the topic, in one step: `app.publish("order.paid", {…})`.

        Each gets the values of the payload that it has parameters for. `id=` makes a repeated event safe.
        """
        return self.enqueue_many(topics.calls(cast("Holdfast", self), topic, payload, settings))

    async def apublish(
        self, topic: str, payload: Mapping[str, Any] | None = None, /, **settings: Unpack[UsingSettings]
    ) -> Enqueued:
        """Async version of `publish`."""
        return await self.aenqueue_many(topics.calls(cast("Holdfast", self), topic, payload, settings))

    # ------------------------------------------------------------------ results

    def follow(self, job: JobOrId) -> Iterator[Step]:
        """A job's log lines, progress and state changes, live, until it finishes."""
        forbid_running_loop("app.follow()", "", advice="Use `async for step in app.afollow(…)`.")
        following = JobFollower(job_id(job))
        while not following.over:
            yield from self._store.call(following.look)

    async def afollow(self, job: JobOrId) -> AsyncIterator[Step]:
        """Like `follow`: `async for step in app.afollow(job)`."""
        following = JobFollower(job_id(job))
        while not following.over:
            for step in await self._store.acall(following.look):
                yield step

    def enqueue_flow(self, flow: Flow[R]) -> FlowRun[R]:
        """Store the calls of a flow: up to 1,000 in one step or not at all, more in several, parents first."""
        self.enqueue_many(flow.calls)
        return self._run_of(flow)

    async def aenqueue_flow(self, flow: Flow[R]) -> FlowRun[R]:
        """Async version of `enqueue_flow`."""
        await self.aenqueue_many(flow.calls)
        return self._run_of(flow)

    def flow(self, job: JobOrId) -> FlowRun[Any]:
        """The flow that a job belongs to: all jobs that are linked to it by `after=`."""
        app: Any = self
        return flows.FlowRun(app, job_id(job))

    def _run_of(self, flow: Flow[R]) -> FlowRun[R]:
        app: Any = self
        return flows.FlowRun(app, flow.calls[0].id, flow.last if len(flow.ends) == 1 else None)

    def batch(
        self,
        *,
        on_success: BoundCall[Any] | None = None,
        on_failure: BoundCall[Any] | None = None,
        on_finish: BoundCall[Any] | None = None,
        name: str = "",
        queue: str | None = None,
        batch: Batch | None = None,
    ) -> Batch:
        """A new batch: `with app.batch(on_success=call) as batch: batch.enqueue(call)`. Nothing is stored yet.

        The callbacks are enqueued once, when all jobs of the batch have finished: `on_success` if all succeeded,
        `on_failure` if one died or was cancelled, `on_finish` in any case. `batch=`: the batch that this one is in.
        """
        app: Any = self
        callbacks = {"on_success": on_success, "on_failure": on_failure, "on_finish": on_finish}
        return batches.new_batch(app, callbacks, name=name, queue=queue, batch=batch)

    def enqueue_batch(self, calls: Iterable[BoundCall[Any]], **settings: Unpack[BatchSettings]) -> Batch:
        """Store a closed batch of these calls: up to 999 in one step or not at all, more in several, closed last."""
        made, given = self.batch(**settings), list(calls)
        whole = batches.closed_in_one_step(made, given)
        if whole is None:
            made.enqueue_many(given)
            made.close()
        else:
            made._open_outer(whole[0])
            self.enqueue_many(whole)
        return self.find_batch(made.id)

    async def aenqueue_batch(self, calls: Iterable[BoundCall[Any]], **settings: Unpack[BatchSettings]) -> Batch:
        """Async version of `enqueue_batch`."""
        made, given = self.batch(**settings), list(calls)
        whole = batches.closed_in_one_step(made, given)
        if whole is None:
            await made.aenqueue_many(given)
            await made.aclose()
        else:
            await made._aopen_outer(whole[0])
            await self.aenqueue_many(whole)
        return self.find_batch(made.id)

    def find_batch(self, id: str) -> Batch:
        """The batch with this id, to look at it, add to it or cancel it. Reads nothing yet."""
        app: Any = self
        return batches.known_batch(app, id)

    def _task_of_batches(self, name: str) -> Task[..., Any]:
        if self._batch_tasks is None:
            app: Any = self
            self._batch_tasks = batches.own_tasks(app)
        return self._batch_tasks[name]

    def map(self, task: Task[[list[T]], Any], rows: Iterable[T], *, chunk: int = 1000) -> Enqueued:
        """One job for every `chunk` rows: each gets a list of them. Rows are taken as they come, never all at once."""
        return self.enqueue_many(flows.in_chunks(task, rows, chunk))

    async def amap(self, task: Task[[list[T]], Any], rows: Iterable[T], *, chunk: int = 1000) -> Enqueued:
        """Async version of `map`."""
        return await self.aenqueue_many(flows.in_chunks(task, rows, chunk))

    def relatives(self, job: JobOrId, *, limit: int = 100) -> Relatives:
        """The jobs that this one waits for, or waited for (`after=`), and those that wait for it."""
        forbid_running_loop("app.relatives()", "app.arelatives()")
        return self._store.call(partial(_relatives, job_id(job), limit))

    async def arelatives(self, job: JobOrId, *, limit: int = 100) -> Relatives:
        """Async version of `relatives`."""
        return await self._store.acall(partial(_relatives, job_id(job), limit))

    def signal(self, job: JobOrId, name: str, value: Any = None, *, by: str = "") -> Job[Any]:
        """Send a signal to an unfinished job: its handler gets the value from `ctx.wait_for(name)`, now or later.

        The first signal of a name counts; sending it again changes nothing.
        """
        forbid_running_loop("app.signal()", "app.asignal()")
        return self._job(self._store.call(self._signalling(job, name, value, by)))

    async def asignal(self, job: JobOrId, name: str, value: Any = None, *, by: str = "") -> Job[Any]:
        """Async version of `signal`."""
        return self._job(await self._store.acall(self._signalling(job, name, value, by)))

    def _signalling(
        self, job: JobOrId, name: str, value: Any, by: str
    ) -> Callable[[Backend], Coroutine[Any, Any, JobRecord]]:
        from .edits import signal_value

        id, who, raw = job_id(job), checked_by(by), signal_value(name, value, self.result_bytes_max)
        return lambda backend: backend.signal(id, name, raw, by=who)

    def steps(self, job: JobOrId) -> list[StoredStep]:
        """What a job remembers between its attempts: steps, sleeps and waits in their order, then all the rest."""
        forbid_running_loop("app.steps()", "app.asteps()")
        return self._store.call(partial(_steps, job_id(job)))

    async def asteps(self, job: JobOrId) -> list[StoredStep]:
        """Async version of `steps`."""
        return await self._store.acall(partial(_steps, job_id(job)))

    async def _results_of_parents(self, child_id: str, backend: Backend) -> dict[str, Any]:
        """The results of the parents that succeeded, by id."""
        found = await backend.relatives(child_id, limit=PARENTS_MAX, values=True)
        return {
            one.id: None if one.value is None else self._rebuild(one.task, one.value)
            for one in found.parents
            if one.state is State.SUCCEEDED
        }

    def _rebuild(self, task: str, raw: bytes) -> Any:
        known = self.find_task(task)
        return decode_plain(raw) if known is None else known._decode_value(raw)

    def _result(self, job: Job[Any], timeout: Duration | None) -> Any:
        forbid_running_loop("job.result()", "job.aresult()")
        return self._finished(self._store.call(partial(self._store.waiter.wait, job.id, timeout)))

    async def _aresult(self, job: Job[Any], timeout: Duration | None) -> Any:
        return self._finished(await self._store.acall(partial(self._store.waiter.wait, job.id, timeout)))

    def _reread(self, job: Job[Any]) -> JobRecord:
        forbid_running_loop("job.refresh()", "job.arefresh()")
        return self.job(job.id)._record

    def _cancel(self, job: Job[Any], reason: str) -> JobRecord:
        forbid_running_loop("job.cancel()", "job.acancel()")
        return self.cancel(job.id, reason=reason)._record

    def _finished(self, record: JobRecord) -> Any:
        if record.state is State.CANCELLED:
            raise JobCancelled(record.id)
        if record.state is State.DEAD:
            latest = record.errors[-1] if record.errors else None
            text = None if latest is None else f"{latest.type}: {latest.text}" if latest.type else latest.text
            raise JobDied(record.id, record.reason or "failed", text or None)
        if record.value is None:
            return None
        try:
            return self._rebuild(record.task, record.value)
        except (ValueError, RecursionError) as error:  # msgspec's errors too
            raise BackendError(
                f"the result of job {record.id} cannot be read: what is stored is not JSON. `holdfast audit` finds "
                "what else is damaged; enqueue the job anew if its result is needed."
            ) from error


# ----------------------------------------------------------------------------------------------------------------------
# Splitting bound calls into chunks, one per step of enqueue_many. Validates them; does no I/O.


CHUNK_JOBS_MAX = 1000
CHUNK_BYTES_MAX = 16 << 20  # of arguments: a chunk that cannot be sent within call_timeout would never succeed


def checked(call: object) -> BoundCall[Any]:
    """The bound call, or ConfigurationError for anything else."""
    if not isinstance(call, BoundCall):
        raise ConfigurationError(f"enqueue takes bound calls, made by task.bind(…), not {type(call).__name__}.")
    return call


def shared_connection(chunk: list[BoundCall[Any]]) -> Any:
    """The caller's own connection shared by all of the calls, or None."""
    connection = chunk[0].connection
    if any(call.connection is not connection for call in chunk):
        raise ConfigurationError("the calls of one enqueue_many() must share one connection=, or have none.")
    return connection


class _Steps:
    """Collects calls into chunks bounded in number and bytes."""

    def __init__(self) -> None:
        self.chunk: list[BoundCall[Any]] = []
        self._size = 0

    def add(self, call: object) -> list[BoundCall[Any]] | None:
        """Add one call; returns the chunk if that fills it."""
        bound = checked(call)
        self.chunk.append(bound)
        self._size += len(bound.new.args)
        if len(self.chunk) < CHUNK_JOBS_MAX and self._size < CHUNK_BYTES_MAX:
            return None
        return self.taken()

    def taken(self) -> list[BoundCall[Any]]:
        """The calls collected so far, parents before their children."""
        full, self.chunk, self._size = self.chunk, [], 0
        return parents_first(full) if any(call.new.after for call in full) else full


def parents_first(chunk: list[BoundCall[Any]]) -> list[BoundCall[Any]]:
    """The calls of a step in an order in which each comes after those it waits for; refuses a cycle."""
    calls = {call.id: call for call in chunk}
    waits = {call.id: [parent for parent in call.new.after if parent in calls] for call in chunk}
    ordered: dict[str, BoundCall[Any]] = {}
    for first in calls:
        path = [first]  # down to a call whose parents have their place: chains may be long, so without recursion
        seen = {first}
        while path:
            missing = next((parent for parent in waits[path[-1]] if parent not in ordered), None)
            if missing is None:
                done = path.pop()
                seen.discard(done)
                ordered.setdefault(done, calls[done])
            elif missing in seen:
                cycle = " → ".join([*path[path.index(missing) :], missing])
                raise ConfigurationError(f"these calls wait for each other: {cycle}. Nothing of this step was stored.")
            else:
                path.append(missing)
                seen.add(missing)
    seen_ids: set[str] = set()
    again = [call for call in chunk if call.id in seen_ids or seen_ids.add(call.id)]  # type: ignore[func-returns-value]
    return [*ordered.values(), *again]


def chunks(calls: Iterable[Any]) -> Iterator[list[BoundCall[Any]]]:
    """The calls in chunks, each yielded as soon as it is full."""
    if not isinstance(calls, Iterable):
        raise ConfigurationError(
            f"enqueue_many() takes several bound calls, not a {type(calls).__name__}. Give a list."
        )
    steps = _Steps()
    for call in calls:
        if (full := steps.add(call)) is not None:
            yield full
    if steps.chunk:
        yield steps.taken()


async def achunks(calls: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[list[BoundCall[Any]]]:
    """Like `chunks`; also takes async iterables."""
    if not isinstance(calls, AsyncIterable):
        for chunk in chunks(calls):
            yield chunk
        return
    steps = _Steps()
    async for call in calls:
        if (full := steps.add(call)) is not None:
            yield full
    if steps.chunk:
        yield steps.taken()


def waits_by_rule(new: NewJob) -> bool:
    """Whether only the store knows when it is due: it has parents, or may have to wait for lower orders."""
    return bool(new.after) or (new.order is not None and new.delay is None and new.due_at is None)


async def store(new: NewJob, clock: Clock, backend: Backend) -> tuple[JobRecord, records.Enqueued]:
    answer = (await backend.enqueue([new]))[0]
    if answer.created and not waits_by_rule(new):
        return fresh_record(new, answer, clock.wall()), answer
    return await look_at(new, answer, clock, backend), answer


async def look_at(new: NewJob, answer: records.Enqueued, clock: Clock, backend: Backend) -> JobRecord:
    """Read the job that was there already, or that may have been decided when it was stored."""
    try:
        record = await backend.get(answer.id)
    except BackendError:  # it is stored: a failed read must not make the caller enqueue it again
        record = None
    return record or fresh_record(new, answer, clock.wall())


async def _relatives(name: str, limit: int, backend: Backend) -> Relatives:
    return await backend.relatives(name, limit=limit)


async def _steps(name: str, backend: Backend) -> list[StoredStep]:
    found = (await backend.steps(name)).steps
    return sorted(found, key=lambda step: (step.number == 0, step.number, step.kind, step.name))


async def store_many(chunk: Sequence[BoundCall[Any]], backend: Backend) -> list[bool]:
    return [answer.created for answer in await backend.enqueue([call.new for call in chunk])]


# ----------------------------------------------------------------------------------------------------------------------
# Enqueue in the caller's own transaction: check sync against async, open the store, hand the calls to the backend.
# Runs on the caller's own thread or loop; never commits or rolls back.


Stored = list[tuple[JobRecord, records.Enqueued]]


def join(gate: StoreHandle, connection: Any, calls: Sequence[BoundCall[Any]]) -> Stored:
    """Store the calls through a sync connection; returns each job as its producer knows it, and whether it is new."""
    caller = recognise(connection)
    if caller.is_async:
        raise ConfigurationError(
            f"enqueue() cannot use the {caller.name} given as connection=: it is for async code. "
            "Use `await ….aenqueue()` on the loop that owns the connection."
        )
    backend = gate.unopened
    if not gate.is_open and not (backend.scheme == "sqlite" and is_begun(connection)):
        # Sets up the store: on SQLite, inside the caller's transaction, that would wait for itself.
        gate.opened_here() or gate.open()
    return _stored(gate, calls, backend.enqueue_on(connection, [call.new for call in calls]))


async def ajoin(gate: StoreHandle, connection: Any, calls: Sequence[BoundCall[Any]]) -> Stored:
    """Like `join`, through an async connection."""
    caller = recognise(connection)
    if caller.is_async is False:
        raise ConfigurationError(
            f"aenqueue() cannot use the {caller.name} given as connection=: it is for sync code. "
            "Use enqueue() on the thread that owns the connection."
        )
    backend = gate.unopened
    if not gate.is_open and not (backend.scheme == "sqlite" and is_begun(connection)):
        await gate.acall(lambda _: _opened())
    return _stored(gate, calls, await backend.aenqueue_on(connection, [call.new for call in calls]))


async def _opened() -> None:
    """No-op: going through the store handle has opened the store."""


def _stored(gate: StoreHandle, calls: Sequence[BoundCall[Any]], answers: Sequence[records.Enqueued]) -> Stored:
    now = gate.clock.wall()
    return [
        (fresh_record(call.new, answer, now, State.SCHEDULED), answer)
        for call, answer in zip(calls, answers, strict=True)
    ]
