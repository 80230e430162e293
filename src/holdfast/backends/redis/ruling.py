"""The verbs that change what queues, groups and tasks may do: declare, limit, slow_down, pause, resume, refill.

Called by backend.py. A new word holds from the step that stores it: claims obey it from then on. What it means for jobs
that are ready or wait is carried out page by page, for a script keeps the server waiting; who dies half-way, or meets a
seal that came meanwhile, leaves the rest to claims and to the sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from msgspec import UNSET

from ...errors import ConfigurationError, StoreSealed
from ...records import Pause
from ...rules import Override, QueueRule, TaskRule
from ..refusing import check_limit
from . import rows, rules
from .connection import Connections
from .lua import SCRIPTS

REFILL_PAGE = 500  # groups, or ready jobs, in one step

Lanes = Literal["all", "parked", "apart"]  # all: but those of tasks apart


class Ruling:
    """The verbs of rules on one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._refill_after = ("", b"")

    async def _run(self, verb: str, now: float | None, *values: Any, pieces: Sequence[bytes] = ()) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces)

    async def declare(self, queues: Sequence[QueueRule], tasks: Sequence[TaskRule], now: float | None) -> None:
        for rule in queues:
            check_limit(rule.group_limit, f"group_limit of queue {rule.name!r}")
            check_limit(rule.limit, f"limit of queue {rule.name!r}")
        for task in tasks:
            check_limit(task.limit, f"limit of task {task.name!r}")
        if not queues and not tasks:
            return
        of_queues = [(rule.name, rules.queue_rule(rule)) for rule in queues]
        of_tasks = [(task.name, rules.task_rule(task)) for task in tasks]
        changed, opened, into, out_of = await self._run("declare", now, of_queues, of_tasks)
        if into:
            await self._move(now, "all")
        if out_of:
            await self._move(now, "apart")
        for queue in changed:
            await self._bring_to_rule(queue.decode(), queue in opened, now)

    async def _bring_to_rule(self, queue: str, opened: bool, now: float | None) -> None:
        """Refill or withdraw the queue's groups. `opened`: they may have several ready jobs from now on."""
        after: bytes | None = b""
        with suppress(StoreSealed):
            while after is not None:
                _, last, _ = await self._run("refill", now, queue, after.decode(), REFILL_PAGE, "parked", opened)
                after = last or None

    async def _move(self, now: float | None, lanes: Lanes) -> None:
        """Let ready jobs go into the lanes where they now belong."""
        after: bytes | None = b""
        with suppress(StoreSealed):
            while after is not None:
                _, _, last = await self._run("refill", now, None, None, REFILL_PAGE, lanes, False, pieces=[after])
                after = last or None

    async def refill(self, limit: int, now: float | None) -> int:
        """One page of groups and of parked jobs, going on where the last call stopped."""
        place, member = self._refill_after
        made, last, last_member = await self._run("refill", now, None, place, limit, "parked", False, pieces=[member])
        self._refill_after = (last.decode(), last_member)
        return int(made)

    # ------------------------------------------------------------------ operators

    async def limit(self, said: Override, now: float | None) -> None:
        place = _checked(said, "a limit")
        what = f"{ {'q': 'queue', 'g': 'group', 't': 'task'}[place[0]] } {place[2] or place[1]!r}"
        check_limit(said.limit, f"the limit of {what}")
        limit, rate = rules.override(said)
        told = (None if said.limit is UNSET else [limit], None if said.rate is UNSET else [rate])
        [moves] = await self._run("limit", now, *place, *told)
        if moves:
            await self._move(now, "all" if moves == 1 else "apart")

    async def slow_down(self, queue: str, seconds: float, now: float | None) -> float:
        [until] = await self._run("slow_down", now, queue, seconds)
        return float(until)

    async def pause(self, pause: Pause, now: float | None) -> None:
        [changed] = await self._run("pause", now, *_checked(pause, "a pause"), rows.named(pause))
        if changed and pause.task is not None:
            await self._move(now, "all")
            await self._move(now, "apart")

    async def resume(self, pause: Pause, now: float | None) -> bool:
        [changed] = await self._run("pause", now, *_checked(pause, "a pause"), None)
        if changed and pause.task is not None:
            await self._move(now, "parked")
        return bool(changed)


def _checked(said: Override | Pause, what: str) -> rules.Place:
    """What it is about: exactly one of queue, queue and group, task."""
    if (said.task is None) != (said.queue is None) and (said.queue is not None or said.group is None):
        return rules.place(said)
    raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")
