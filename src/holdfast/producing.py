"""What a producer does with an app: enqueue bound calls, one or many, and wait for what became of them.

Inherited by `Holdfast`; each method has an `a…` twin for async code. Calls were checked when they were bound: here
they are stored, in steps of bounded size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from . import events, records
from .bulk import achunks, checked, chunks, shared_connection
from .calls import fresh_record, is_known, look_at, store, store_many
from .codec import decode_plain
from .errors import BackendError, ConfigurationError, JobCancelled, JobDied
from .following import Following, Step
from .job import BoundCall, Enqueued, Job
from .joining import ajoin, join
from .lifecycle import State
from .operations import JobOrId, Operations, job_id
from .options import Duration
from .portal import HAND_OVER_SECONDS, forbid_running_loop
from .records import JobRecord, NewJob
from .task import Tasks

if TYPE_CHECKING:
    from .app import Holdfast

R = TypeVar("R")


class Producing(Tasks, Operations):
    """The producer's half of an app."""

    hub: events.Hub

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """Store a bound call; repeating it makes no second job. With a connection: in the caller's transaction."""
        connection = checked(call).connection if connection is None else connection
        if connection is not None:
            return self._stored(call, *join(self._gate, connection, [call])[0])
        forbid_running_loop("enqueue()", "aenqueue()")
        gate, new = self._gate, call.new
        backend = gate.opened
        made = None if backend is None else backend.enqueue_here([new])
        if made is None:
            return self._stored(call, *gate.call(partial(store, new, gate.clock)))
        [answer] = made
        if is_known(new, answer):
            return self._stored(call, fresh_record(new, answer.id, gate.clock.wall()), answer)
        return self._stored(call, gate.call(partial(look_at, new, answer, gate.clock)), answer)

    async def aenqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """As `enqueue`."""
        connection = checked(call).connection if connection is None else connection
        if connection is not None:
            return self._stored(call, *(await ajoin(self._gate, connection, [call]))[0])
        gate, new = self._gate, call.new
        backend = gate.opened
        if backend is not None and backend.any_loop:
            return self._stored(call, *await store(new, gate.clock, backend))
        return self._stored(call, *await gate.acall(partial(store, new, gate.clock)))

    def _stored(self, call: BoundCall[R], record: JobRecord, answer: records.Enqueued) -> Job[R]:
        if answer.created and self.hub.wanted("enqueued"):
            self._tell_enqueued(call.new)
        app: Holdfast = self  # type: ignore[assignment]
        return Job(app, record, created=answer.created, replaced=answer.replaced)

    def _tell_enqueued(self, new: NewJob) -> None:
        self.hub.emit(events.Enqueued(job_id=new.id, task=new.task, queue=new.queue, group=new.group))

    def enqueue_many(self, calls: Iterable[BoundCall[Any]]) -> Enqueued:
        """Store many bound calls, up to a thousand in one step; how many were made and how many met an earlier one."""
        if isinstance(calls, AsyncIterable):
            raise ConfigurationError("enqueue_many() was given an async iterable. Use `await app.aenqueue_many()`.")
        created = total = 0
        under_way: list[Callable[[], int]] = []  # at most one step, while the calls of the next are made
        try:
            for chunk in chunks(calls):
                while under_way:
                    created += under_way.pop()()
                under_way.append(self._begin_chunk(chunk))
                total += len(chunk)
        finally:  # also where making a call raised: what was begun is waited for, and told
            while under_way:
                created += under_way.pop()()
        return Enqueued(created, total - created)

    def _begin_chunk(self, chunk: list[BoundCall[Any]]) -> Callable[[], int]:
        connection = shared_connection(chunk)
        if connection is not None:
            made = self._told(chunk, [answer.created for _, answer in join(self._gate, connection, chunk)])
            return lambda: made
        forbid_running_loop("enqueue_many()", "aenqueue_many()")
        answer = self._gate.begin(partial(store_many, chunk))
        return lambda: self._told(chunk, answer())

    async def aenqueue_many(self, calls: Iterable[BoundCall[Any]] | AsyncIterable[BoundCall[Any]]) -> Enqueued:
        """As `enqueue_many`; takes async iterables too."""
        created = total = 0
        under_way: list[asyncio.Task[int]] = []
        try:
            async for chunk in achunks(calls):
                while under_way:
                    created += await under_way.pop()
                step = asyncio.create_task(self._astore_chunk(chunk))
                under_way.append(step)
                # The caller's own connection is the caller's again before the next call is made.
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
        return Enqueued(created, total - created)

    async def _astore_chunk(self, chunk: list[BoundCall[Any]]) -> int:
        connection = shared_connection(chunk)
        if connection is not None:
            joined = await ajoin(self._gate, connection, chunk)
            return self._told(chunk, [answer.created for _, answer in joined])
        return self._told(chunk, await self._gate.acall(partial(store_many, chunk)))

    def _told(self, chunk: list[BoundCall[Any]], made: list[bool]) -> int:
        if self.hub.wanted("enqueued"):
            for call, created in zip(chunk, made, strict=True):
                if created:
                    self._tell_enqueued(call.new)
        return sum(made)

    # ------------------------------------------------------------------ results

    def follow(self, job: JobOrId) -> Iterator[Step]:
        """What a job's handlers report, live: each log line, each progress, each change of state; until it finished."""
        forbid_running_loop("app.follow()", "", advice="Use `async for step in app.afollow(…)`.")
        following = Following(job_id(job))
        while not following.over:
            yield from self._gate.call(following.look)

    async def afollow(self, job: JobOrId) -> AsyncIterator[Step]:
        """As `follow`: `async for step in app.afollow(job)`."""
        following = Following(job_id(job))
        while not following.over:
            for step in await self._gate.acall(following.look):
                yield step

    def _rebuild(self, task: str, raw: bytes) -> Any:
        known = self.find_task(task)
        return decode_plain(raw) if known is None else known.decode_value(raw)

    def _result(self, job: Job[Any], timeout: Duration | None) -> Any:
        forbid_running_loop("job.result()", "job.aresult()")
        return self._finished(self._gate.call(partial(self._gate.waiter.wait, job.id, timeout)))

    async def _aresult(self, job: Job[Any], timeout: Duration | None) -> Any:
        return self._finished(await self._gate.acall(partial(self._gate.waiter.wait, job.id, timeout)))

    def _reread(self, job: Job[Any]) -> JobRecord:
        forbid_running_loop("job.refresh()", "job.arefresh()")
        return self.job(job.id)._record

    def _cancel(self, job: Job[Any]) -> JobRecord:
        forbid_running_loop("job.cancel()", "job.acancel()")
        return self.cancel(job.id)._record

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
