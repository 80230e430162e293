"""Inspecting and overriding queues, groups and tasks: `app.queues`, `app.groups`, `app.tasks`.

Created by the app. An operator's override takes precedence over what the code declares, immediately and without a
restart, until it is reset; both are shown. Every method is one call to the store and decides nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from .errors import ConfigurationError
from .names import check_name
from .operator import Operator, queue_or_none
from .options import COUNT_MAX, queue_name, said_limit, said_rate, whole
from .rates import Rate
from .records import GroupRecord, Override, QueueRecord, TaskRecord
from .task import Task

if TYPE_CHECKING:
    from .app import Holdfast

Lifted = Literal["none"]
SaidLimit = int | Lifted | UnsetType | None
SaidRate = str | Rate | UnsetType | None


def make_override(
    limit: SaidLimit, rate: SaidRate, *, queue: Any = None, group: str | None = None, task: Any = None
) -> Override:
    """A validated override of a queue, a group or a task."""
    if limit is UNSET and rate is UNSET:
        raise ConfigurationError('say limit=, rate= or both: a value, "none" to lift it, None to reset it.')
    return Override(
        queue=queue_or_none(queue),
        group=group,
        task=None if task is None else check_name(getattr(task, "name", task), "task name"),
        limit=said_limit(limit, "limit="),
        rate=said_rate(rate, "rate="),
    )


class Groups:
    """`app.groups`: order and concurrency by group."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def list(self, queue: str | None = None, *, limit: int = 100) -> builtins.list[GroupRecord]:
        """Groups with unfinished jobs, an override or a pause, by queue and name."""
        name, most = queue_or_none(queue), whole(limit, "limit=", 1, COUNT_MAX)
        return self._app._do("groups.list", lambda backend: backend.groups(name, limit=most))

    async def alist(self, queue: str | None = None, *, limit: int = 100) -> builtins.list[GroupRecord]:
        """Async version of `list`."""
        name, most = queue_or_none(queue), whole(limit, "limit=", 1, COUNT_MAX)
        return await self._app._ado(lambda backend: backend.groups(name, limit=most))

    def get(self, queue: str, name: str) -> GroupRecord:
        """One group: its limit and rate, its jobs in play and waiting, and whose turn it is."""
        queue, name = queue_name(queue), check_name(name, "group")
        return self._app._do("groups.get", lambda backend: backend.group(queue, name))

    async def aget(self, queue: str, name: str) -> GroupRecord:
        """Async version of `get`."""
        queue, name = queue_name(queue), check_name(name, "group")
        return await self._app._ado(lambda backend: backend.group(queue, name))

    def limit(self, queue: str, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Limit how many jobs of this group run at once, and how many start per time. None: use the queue's rule."""
        override = make_override(limit, rate, queue=queue, group=check_name(name, "group"))
        self._app._do("groups.limit", lambda backend: backend.limit(override))

    async def alimit(self, queue: str, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, queue=queue, group=check_name(name, "group"))
        await self._app._ado(lambda backend: backend.limit(override))


class Queues:
    """`app.queues`: the named lanes."""

    def __init__(self, app: Operator) -> None:
        self._app = app

    def list(self) -> Sequence[QueueRecord]:
        """Every queue that is declared, overridden, slowed down, paused or has jobs, by name."""
        return self._app._do("queues.list", lambda backend: backend.queues())

    async def alist(self) -> Sequence[QueueRecord]:
        """Async version of `list`."""
        return await self._app._ado(lambda backend: backend.queues())

    def limit(self, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Limit how many jobs of a queue run at once over all workers, and the rate of starts. None: as declared."""
        override = make_override(limit, rate, queue=name)
        self._app._do("queues.limit", lambda backend: backend.limit(override))

    async def alimit(self, name: str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, queue=name)
        await self._app._ado(lambda backend: backend.limit(override))


class RegisteredTasks(Mapping[str, Task[..., Any]]):
    """`app.tasks`: the registered tasks by name, and the tasks the store has rules for."""

    def __init__(self, app: Holdfast, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._app, self._tasks = app, tasks

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<tasks {', '.join(self._tasks)}>"

    def list(self) -> builtins.list[TaskRecord]:
        """Tasks with a rule, an override or a GCRA state in the store, by name; registered here or not."""
        return self._app._do("tasks.list", lambda backend: backend.tasks())

    async def alist(self) -> builtins.list[TaskRecord]:
        """Async version of `list`."""
        return await self._app._ado(lambda backend: backend.tasks())

    def limit(self, task: Task[..., Any] | str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Limit how many jobs of a task run at once over all queues and workers, and the rate. None: as declared."""
        override = make_override(limit, rate, task=task)
        self._app._do("tasks.limit", lambda backend: backend.limit(override))

    async def alimit(self, task: Task[..., Any] | str, limit: SaidLimit = UNSET, *, rate: SaidRate = UNSET) -> None:
        """Async version of `limit`."""
        override = make_override(limit, rate, task=task)
        await self._app._ado(lambda backend: backend.limit(override))
