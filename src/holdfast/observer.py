"""The observer's part of the app: what happened to a job, how tasks are doing over time, what happens now.

Inherited by `Operator`; each method has an `a…` twin for async code. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from . import logs
from .clock import to_seconds
from .errors import ConfigurationError, HoldfastError
from .events import Event, kept, of_recovered
from .job import Job
from .names import check_name, check_text
from .options import Duration
from .records import BY_CHARS_MAX, JobQuery, Recovered
from .rollups import Recording, Rollup, Span, merged, recovered_as
from .store_thread import StoreHandle, forbid_running_loop

if TYPE_CHECKING:
    from .backends.contract import Backend
    from .inspection import HistoryEntry, Stats
    from .inspection.stats import By
    from .inspection.watch import Watch

T = TypeVar("T")
JobOrId = Job[Any] | str


def checked_by(by: str, what: str = "by") -> str:
    """Validate `by` or a reason for the job's timeline: bounded, because a timeline is stored with its job."""
    return check_text(by, what)[:BY_CHARS_MAX]


def job_id(job: JobOrId) -> str:
    """The id of a job given as an object or as an id."""
    return job.id if isinstance(job, Job) else check_name(job, "id")


async def _history(id: str, backend: Backend) -> list[HistoryEntry]:
    from .inspection import history

    return await history(backend, id)


async def _stats(by: By, since: float, step: Span | None, backend: Backend) -> Stats:
    from .inspection import stats

    return await stats(backend, await backend.clock(), by, since, step)


def _checked_by(by: str, step: str | None) -> None:
    if by not in ("task", "queue", "worker"):
        raise ConfigurationError(f'by={by!r} is not one of "task", "queue" and "worker".')
    if step not in (None, "minute", "hour"):
        raise ConfigurationError(f'step={step!r} is not one of "minute" and "hour".')
    if by == "worker" and step == "hour":
        raise ConfigurationError('by="worker" is kept by the minute only. Use step="minute", or leave it out.')


async def tell(backend: Backend, *seen: Event, rollups: Sequence[Rollup] = ()) -> None:
    """Record an operator's events for `watch`, and what ended by it. Best effort: the change itself has been made."""
    try:
        await backend.record(Recording(events=tuple(map(kept, seen)), rollups=tuple(rollups)))
    except HoldfastError as error:
        logs.record_failed(error)


async def recover(backend: Backend) -> list[Recovered]:
    """Recover for an operator, and count the stalls: no worker does."""
    ends = await backend.recover()
    stalls = [end for end in ends if end.counted]
    if stalls:
        found = [Rollup(outcome=recovered_as(one.state), count=1, queue=one.queue, task=one.task) for one in stalls]
        await tell(backend, *of_recovered(stalls, ""), rollups=merged(found))
    return ends


class Observer:
    """The observer's part of an app, and how every part calls the store."""

    _store: StoreHandle

    def _do(self, name: str, work: Callable[[Backend], Coroutine[Any, Any, T]], *, advice: str = "") -> T:
        forbid_running_loop(f"app.{name}()", _twin(name), advice=advice)
        return self._store.call(work)

    async def _ado(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        return await self._store.acall(work)

    def history(self, job: JobOrId) -> list[HistoryEntry]:
        """The job's timeline, oldest first: enqueued, claimed by whom, how each attempt ended, what operators did."""
        return self._do("history", partial(_history, job_id(job)))

    async def ahistory(self, job: JobOrId) -> list[HistoryEntry]:
        """Async version of `history`."""
        return await self._ado(partial(_history, job_id(job)))

    def stats(self, by: By = "task", *, since: Duration = 3600.0, step: Span | None = None) -> Stats:
        """What ended within the last `since`, by task, queue or worker: counts, failure rate, wait and run times.

        `step`: by the minute or by the hour; without one, minutes for up to three hours.
        """
        _checked_by(by, step)
        return self._do("stats", partial(_stats, by, to_seconds(since, "since=", least=1.0), step))

    async def astats(self, by: By = "task", *, since: Duration = 3600.0, step: Span | None = None) -> Stats:
        """Async version of `stats`."""
        _checked_by(by, step)
        return await self._ado(partial(_stats, by, to_seconds(since, "since=", least=1.0), step))

    def watch(
        self,
        query: str | JobQuery | None = None,
        *,
        events: Collection[str] | None = None,
        after: int | None = None,
        every: Duration = 0.5,
    ) -> Watch:
        """Events of all workers and operators from now on, or after a position: read with `async for` or `for`.

        `query` is text such as "queue:mail task:send_*"; `events` are names. It polls at this interval.
        """
        from .inspection.watch import Watch

        return Watch(self, query, events, after, to_seconds(every, "every=", least=0.01))


def _twin(name: str) -> str:
    place, dot, verb = name.rpartition(".")
    return f"app.{place}{dot}a{verb}()"
