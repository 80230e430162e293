"""`app.keys`: let go of a key that a job holds, so that the next call with it makes a new job.

Created by the app; each method has an `a…` twin. Finds the holders, then frees each in one step of the store. A job
that takes the key in between is left alone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .job import Job
from .names import check_name
from .observer import checked_by
from .options import queue_name
from .records import JobQuery, JobRecord

if TYPE_CHECKING:
    from .backends.contract import Backend
    from .operator import Operator
    from .task import Task

HOLDERS_LOOKED_MAX = 10_000  # newest jobs of the key that are read: one of them may hold it for a window


class Keys:
    """Unique keys of an app's jobs."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def free(
        self, key: str, *, queue: str | None = None, task: Task[..., Any] | str | None = None, by: str = ""
    ) -> list[Job[Any]]:
        """Free a key; returns the jobs that held it. They continue without it, whatever their state."""
        return [self._app._job(one) for one in self._app._do("keys.free", _freeing(key, queue, task, by))]

    async def afree(
        self, key: str, *, queue: str | None = None, task: Task[..., Any] | str | None = None, by: str = ""
    ) -> list[Job[Any]]:
        """Async version of `free`."""
        return [self._app._job(one) for one in await self._app._ado(_freeing(key, queue, task, by))]


def _freeing(key: str, queue: str | None, task: Any, by: str) -> partial[Any]:
    query = JobQuery(
        key=check_name(key, "key"),
        queue=None if queue is None else queue_name(queue),
        task=None if task is None else check_name(getattr(task, "name", task), "task name"),
        limit=HOLDERS_LOOKED_MAX,
    )
    return partial(_free, query, checked_by(by))


async def _free(query: JobQuery, by: str, backend: Backend) -> list[JobRecord]:
    holders = [job for job in await backend.find(query) if job.holds_key]
    return [await backend.free_key(job.id, by=by) for job in holders]
