"""Batches: jobs that belong together, counted by state, with jobs that are fired once when all of them have finished.

Called by users through `app.batch` and `app.enqueue_batch`. A batch is a job, its *join*, that waits for its members
whatever becomes of them, and is added to while it waits (R87). When its turn comes, a worker runs it: it counts the
members and enqueues the callbacks with its own end, so they are stored once or not at all. An open batch has one more
member, which is due in a thousand years: closing the batch is cancelling that one. So the store knows jobs and edges
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .backends.contract import Backend
from .clock import to_seconds
from .context import Context
from .dependencies import BATCH_OPEN_TASK as HOLD
from .dependencies import BATCH_TASK as JOIN
from .dependencies import DUE_NEVER, Relative
from .errors import ConfigurationError, JobNotFound
from .flows import was_done
from .headers import with_batch, with_parents
from .job import BoundCall, Enqueued, Job
from .lifecycle import State
from .names import check_name, new_id
from .options import Duration, TaskOptions
from .producer import CHUNK_JOBS_MAX, checked
from .records import JobRecord, NewJob
from .retry import RetryPolicy
from .store_thread import forbid_running_loop
from .task import Task

if TYPE_CHECKING:
    from .app import Holdfast

R = TypeVar("R")
T = TypeVar("T")

PAGE = 1000  # members that are read in one call
STALLS_MAX = 1_000_000  # a join is not to blame for workers that die while it runs
QUEUE_DEFAULT = "default"  # of a batch without jobs


class BatchSettings(TypedDict, total=False):
    """What `app.batch` takes."""

    on_success: BoundCall[Any] | None
    on_failure: BoundCall[Any] | None
    on_finish: BoundCall[Any] | None
    name: str
    queue: str | None
    batch: Batch | None


class BatchStatus(Struct, frozen=True):
    """The state of a batch, now or when it finished."""

    id: str
    name: str
    open: bool  # it may still be added to from outside
    finished: bool  # all members have finished, and the callbacks were enqueued
    counts: Mapping[State, int]  # members by state; a batch inside this one is one member

    @property
    def total(self) -> int:
        """How many members it has."""
        return sum(self.counts.values())

    @property
    def failed(self) -> int:
        """How many of them died or were cancelled."""
        return self.counts.get(State.DEAD, 0) + self.counts.get(State.CANCELLED, 0)

    @property
    def progress(self) -> float:
        """The part that has finished, from 0 to 1."""
        done = sum(count for state, count in self.counts.items() if state.finished)
        return done / self.total if self.total else float(self.finished)


class Plan(Struct, frozen=True, omit_defaults=True):
    """The arguments of a join: what the batch is called, and what to enqueue when it has finished."""

    name: str = ""
    on_success: NewJob | None = None
    on_failure: NewJob | None = None
    on_finish: NewJob | None = None


class Batch:
    """A batch, open or closed. Each method has an `a…` twin; `with` and `async with` open and close it.

    Adding the first job opens it; `app.find_batch(id)` finds it again.
    """

    __slots__ = ("_app", "_join", "_outer", "_stored", "id")

    def __init__(self, app: Holdfast, join: NewJob, *, stored: bool = False, outer: Batch | None = None) -> None:
        self._app, self._join, self.id = app, join, join.id
        self._outer = outer  # the batch that this one is a member of
        self._stored = stored  # its join is in the store

    # ------------------------------------------------------------------ adding

    def add(self, call: BoundCall[R]) -> BoundCall[R]:
        """The call as a member of this batch, for `ctx.enqueue(batch.add(call))`: stored with the attempt's end."""
        new = checked(call).new
        if call.connection is not None:
            raise ConfigurationError("a job of a batch cannot join your own transaction: leave out connection=.")
        if self.id in new.after:
            raise ConfigurationError("a job of a batch cannot wait for the batch, which waits for it.")
        if new.key is not None and new.on_conflict in ("replace", "debounce"):
            raise ConfigurationError(
                "a job of a batch cannot use on_conflict='replace', 'debounce' or 'keep_last': the job that it would "
                "change is not in the batch. Use 'keep', 'extend', 'throttle' or 'raise'."
            )
        if new.before is not None:
            raise ConfigurationError(f"{call!r} is already in a batch. Bind the task once for each.")
        return BoundCall(replace(new, before=self.id, options=with_batch(new.options, self.id)))

    def enqueue(self, call: BoundCall[R]) -> Job[R]:
        """Store a job in this batch. StateConflict if the batch has finished."""
        added = self.add(call)
        self._open_for(call)
        return self._app.enqueue(added)

    async def aenqueue(self, call: BoundCall[R]) -> Job[R]:
        """Async version of `enqueue`."""
        added = self.add(call)
        await self._aopen_for(call)
        return await self._app.aenqueue(added)

    def enqueue_many(self, calls: Iterable[BoundCall[Any]]) -> Enqueued:
        """Store many jobs in this batch, up to 1,000 per step."""
        return self._app.enqueue_many(self._added(calls, self._open_for))

    async def aenqueue_many(self, calls: Iterable[BoundCall[Any]]) -> Enqueued:
        """Async version of `enqueue_many`."""
        taken = iter(calls)
        first = next(taken, None)
        if first is None:
            return Enqueued(0, 0)
        await self._aopen_for(first)
        return await self._app.aenqueue_many(self.add(call) for call in (first, *taken))

    def _added(self, calls: Iterable[BoundCall[Any]], prepare: Callable[[BoundCall[Any]], None]) -> Any:
        for call in calls:
            prepare(call)
            yield self.add(call)

    # ------------------------------------------------------------------ opening and closing

    def close(self) -> None:
        """Accept no more jobs from outside: the batch finishes with its members. Its own jobs can still add some."""
        if not self._stored:
            call = self._alone()
            self._open_outer(call)
            self._app.enqueue(call)
            self._stored = True
            return
        forbid_running_loop("batch.close()", "batch.aclose()")
        self._app._store.call(partial(_close, self.id))
        if self._app._eager is not None:
            self._app._eager.run()

    async def aclose(self) -> None:
        """Async version of `close`."""
        if not self._stored:
            call = self._alone()
            await self._aopen_outer(call)
            await self._app.aenqueue(call)
            self._stored = True
            return
        await self._app._store.acall(partial(_close, self.id))
        if self._app._eager is not None:
            await self._app._eager.arun()

    def _alone(self) -> BoundCall[Any]:
        """The join of a batch to which nothing was added."""
        return BoundCall(replace(self._join, queue=self._join.queue or QUEUE_DEFAULT))

    def _open_for(self, call: BoundCall[Any]) -> None:
        self._open_outer(call)
        if not self._stored:
            self._app.enqueue_many(self._opening(call))
            self._stored = True

    def _open_outer(self, call: BoundCall[Any]) -> None:
        if self._outer is not None:
            self._outer._open_for(call)

    async def _aopen_outer(self, call: BoundCall[Any]) -> None:
        if self._outer is not None:
            await self._outer._aopen_for(call)

    async def _aopen_for(self, call: BoundCall[Any]) -> None:
        await self._aopen_outer(call)
        if not self._stored:
            await self._app.aenqueue_many(self._opening(call))
            self._stored = True

    def _opening(self, call: BoundCall[Any]) -> list[BoundCall[Any]]:
        """The member that keeps it open, and its join: in the queue of the first job, unless one was given."""
        join = self._join if self._join.queue else replace(self._join, queue=checked(call).new.queue)
        hold = NewJob(id=_hold_of(join.id), task=HOLD, queue=join.queue, due_at=DUE_NEVER)
        return [BoundCall(hold), BoundCall(_waits_for(join, [hold.id]))]

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._stored:  # what was stored of it must not count as a whole
            self.cancel()

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        elif self._stored:
            await self.acancel()

    # ------------------------------------------------------------------ looking and waiting

    def status(self) -> BatchStatus:
        """Its members by state, and whether it is open or has finished."""
        forbid_running_loop("batch.status()", "batch.astatus()")
        return self._app._store.call(partial(status_of, self.id))

    async def astatus(self) -> BatchStatus:
        """Async version of `status`."""
        return await self._app._store.acall(partial(status_of, self.id))

    def finished(self, timeout: Duration | None = None) -> BatchStatus:
        """Wait until it has finished, and return the final states of its members. WaitTimedOut."""
        forbid_running_loop("batch.finished()", "batch.afinished()")
        return self._app._store.call(partial(self._wait, timeout))

    async def afinished(self, timeout: Duration | None = None) -> BatchStatus:
        """Async version of `finished`."""
        return await self._app._store.acall(partial(self._wait, timeout))

    async def _wait(self, timeout: Duration | None, backend: Backend) -> BatchStatus:
        seconds = None if timeout is None else to_seconds(timeout, "timeout=")
        record = await self._app._store.waiter.wait(self.id, seconds, backend)
        self._app._finished(record)  # raises if the join itself was cancelled or buried
        return await status_of(self.id, backend)

    def cancel(self, *, by: str = "") -> int:
        """Close it and cancel its unfinished members; returns how many. Callbacks are enqueued as usual."""
        forbid_running_loop("batch.cancel()", "batch.acancel()")
        done = self._app._store.call(partial(cancel, self.id, by))
        if self._app._eager is not None:
            self._app._eager.run()
        return done

    async def acancel(self, *, by: str = "") -> int:
        """Async version of `cancel`."""
        done = await self._app._store.acall(partial(cancel, self.id, by))
        if self._app._eager is not None:
            await self._app._eager.arun()
        return done

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


# ----------------------------------------------------------------------------------------------------------------------
# Making


def new_batch(
    app: Holdfast, callbacks: Mapping[str, BoundCall[Any] | None], *, name: str, queue: str | None, batch: Batch | None
) -> Batch:
    """A batch that is not stored yet."""
    id = new_id()
    calls = {which: _callback(which, call, id) for which, call in callbacks.items() if call is not None}
    if len({call.id for call in calls.values()}) < len(calls):
        raise ConfigurationError("a bound call is one job: bind the task once for each callback.")
    plan = Plan(check_name(name, "batch's name") if name else "", **calls)
    where = check_name(queue, "queue") if queue is not None else next((call.queue for call in calls.values()), "")
    join = NewJob(
        id=id,
        task=JOIN,
        queue=where,
        args=msgspec.json.encode({"plan": plan}),
        max_stalls=STALLS_MAX,
        on_parent_failure="run",
    )
    if batch is not None:
        if not isinstance(batch, Batch):
            raise ConfigurationError(f"batch= takes a batch, not a {type(batch).__name__}.")
        join = batch.add(BoundCall(join)).new
    return Batch(app, join, outer=batch)


def known_batch(app: Holdfast, id: str) -> Batch:
    """A batch that is in the store."""
    return Batch(app, NewJob(id=check_name(id, "batch's id"), task=JOIN), stored=True)


def _callback(which: str, call: object, batch_id: str) -> NewJob:
    if not isinstance(call, BoundCall):
        raise ConfigurationError(f"{which}= takes a bound call, made by task.bind(…), not a {type(call).__name__}.")
    if call.connection is not None or call.new.after or call.new.before:
        raise ConfigurationError(f"{which}= is enqueued when the batch has finished: leave out connection= and after=.")
    return replace(call.new, options=with_batch(call.new.options, batch_id))


def closed_in_one_step(batch: Batch, calls: list[BoundCall[Any]]) -> list[BoundCall[Any]] | None:
    """The calls that store a whole batch of these at once; None if they are too many for one step."""
    if not calls or len(calls) >= CHUNK_JOBS_MAX:
        return None
    added = [batch.add(call).new for call in calls]
    join = batch._join if batch._join.queue else replace(batch._join, queue=added[0].queue)
    alone: list[BoundCall[Any]] = [BoundCall(replace(new, before=None)) for new in added]
    return [*alone, BoundCall(_waits_for(join, [new.id for new in added]))]


def _waits_for(join: NewJob, members: Iterable[str]) -> NewJob:
    ids = tuple(dict.fromkeys(members))
    return replace(join, after=ids, options=with_parents(join.options, len(ids)))


def _hold_of(id: str) -> str:
    return f"{id}.open"


# ----------------------------------------------------------------------------------------------------------------------
# In the store


async def members(id: str, backend: Backend) -> list[Relative]:
    """The members of a batch, by id, without the one that keeps it open."""
    found: list[Relative] = []
    beyond = ""
    while True:
        near = (await backend.relatives(id, limit=PAGE, beyond=beyond)).parents
        found += [one for one in near if one.task != HOLD]
        if len(near) < PAGE:
            return found
        beyond = near[-1].id


async def join_of(id: str, backend: Backend) -> JobRecord:
    """The job that a batch is; JobNotFound if there is none of this id."""
    record = await backend.get(id)
    if record is None or record.task != JOIN:
        raise JobNotFound(id, "batch")
    return record


async def status_of(id: str, backend: Backend) -> BatchStatus:
    """What is stored of a batch; of one that has finished, what its join counted."""
    join = await join_of(id, backend)
    if join.state is State.SUCCEEDED and join.value is not None:
        counts = msgspec.json.decode(join.value, type=dict[State, int])
        return BatchStatus(id, plan_of(join).name, False, True, MappingProxyType(counts))
    hold = await backend.get(_hold_of(id))
    found = Counter(one.state for one in await members(id, backend))
    is_open = hold is not None and hold.state.live
    return BatchStatus(id, plan_of(join).name, is_open, False, MappingProxyType(dict(found)))


def plan_of(join: JobRecord) -> Plan:
    """What a join is to do; an empty plan if it cannot be read."""
    try:
        return msgspec.json.decode(join.args, type=dict[str, Plan])["plan"]
    except (msgspec.MsgspecError, KeyError):
        return Plan()


async def _close(id: str, backend: Backend) -> None:
    await join_of(id, backend)
    await was_done(backend.cancel(_hold_of(id), by="batch.close"))


async def cancel(id: str, by: str, backend: Backend) -> int:
    """Close it, and cancel the members that have not finished, and those of batches inside; returns how many."""
    await _close(id, backend)
    done, tried = 0, set[str]()
    while live := [one for one in await members(id, backend) if one.state.live and one.id not in tried]:
        for one in live:  # others may be added meanwhile
            inside = one.task == JOIN
            done += await (cancel(one.id, by, backend) if inside else was_done(backend.cancel(one.id, by=by)))
        tried.update(one.id for one in live)
    return done


# ----------------------------------------------------------------------------------------------------------------------
# The tasks of joins and of what keeps a batch open, which every app knows


def own_tasks(app: Holdfast) -> dict[str, Task[..., Any]]:
    """The tasks of this app's batches themselves, by name."""
    always = RetryPolicy(limit=None)
    return {
        JOIN: Task(join, TaskOptions(name=JOIN, retry=always, max_stalls=STALLS_MAX), app),
        HOLD: Task(hold, TaskOptions(name=HOLD, retry=always, max_stalls=STALLS_MAX), app),
    }


async def hold() -> None:
    """Somebody ran what keeps a batch open: it was closed before, or is now."""


async def join(ctx: Context, plan: Plan) -> dict[State, int]:
    """All members have finished: count them, and enqueue the callbacks with this job's own end."""
    counts: Counter[State] = Counter()
    if ctx._task is not None:
        counts.update(one.state for one in await ctx._task.app._store.acall(partial(members, ctx.id)))
    failed = counts[State.DEAD] + counts[State.CANCELLED]
    for call in (plan.on_failure if failed else plan.on_success, plan.on_finish):
        if call is not None:
            ctx.enqueue(BoundCall(call))
    return dict(counts)
