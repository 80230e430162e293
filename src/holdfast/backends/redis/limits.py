"""The verbs that change rules of queues, groups and tasks, and those that apply them: refill and rearrange.

Called by backend.py. A new rule holds from the step that stores it: claims obey it from then on. That step moves at
most `step` jobs and groups; the store records what is left, for claims and rearrange to continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from ...errors import ConfigurationError
from ...records import Override, Pause, QueueRule, TaskRule
from ..seals import check_limit
from . import codec, rule_codec
from .connection import Connections
from .scripts import SCRIPTS


class LimitVerbs:
    """The rule verbs of one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._refill_after = ("", b"")

    async def _run(self, verb: str, now: float | None, *values: Any, pieces: Sequence[bytes] = ()) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces)

    async def declare(
        self, queues: Sequence[QueueRule], tasks: Sequence[TaskRule], step: int, now: float | None
    ) -> None:
        for rule in queues:
            check_limit(rule.group_limit, f"group_limit of queue {rule.name!r}")
            check_limit(rule.limit, f"limit of queue {rule.name!r}")
        for task in tasks:
            check_limit(task.limit, f"limit of task {task.name!r}")
        if not queues and not tasks:
            return
        of_queues = [(rule.name, rule_codec.queue_rule(rule)) for rule in queues]
        of_tasks = [(task.name, rule_codec.task_rule(task)) for task in tasks]
        await self._run("declare", now, of_queues, of_tasks, step)

    async def rearrange(self, limit: int, now: float | None) -> bool:
        [more] = await self._run("rearrange", now, limit)
        return bool(more)

    async def refill(self, limit: int, now: float | None) -> int:
        """Refill one page of groups and of parked jobs, continuing where the last call stopped."""
        place, member = self._refill_after
        made, last, last_member = await self._run("refill", now, place, limit, pieces=[member])
        self._refill_after = (last.decode(), last_member)
        return int(made)

    # ------------------------------------------------------------------ operators

    async def limit(self, said: Override, step: int, now: float | None) -> None:
        place = _checked(said, "a limit")
        what = f"{ {'q': 'queue', 'g': 'group', 't': 'task'}[place[0]] } {place[2] or place[1]!r}"
        check_limit(said.limit, f"the limit of {what}")
        told = zip((said.limit, said.rate, said.apart), rule_codec.override(said), strict=True)
        await self._run("limit", now, *place, *(None if one is UNSET else [stored] for one, stored in told), step)

    async def slow_down(self, queue: str, seconds: float, now: float | None) -> float:
        [until] = await self._run("slow_down", now, queue, seconds)
        return float(until)

    async def pause(self, pause: Pause, step: int, now: float | None) -> None:
        await self._run("pause", now, *_checked(pause, "a pause"), codec.named(pause), step)

    async def resume(self, pause: Pause, step: int, now: float | None) -> bool:
        [changed] = await self._run("pause", now, *_checked(pause, "a pause"), None, step)
        return bool(changed)


def _checked(said: Override | Pause, what: str) -> rule_codec.Place:
    """Return what it applies to: exactly one of queue, queue and group, task."""
    if (said.task is None) != (said.queue is None) and (said.queue is not None or said.group is None):
        return rule_codec.place(said)
    raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")
