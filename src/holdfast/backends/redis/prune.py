"""prune: remove jobs past their retention, then by tasks' retention rules; more, while the server is short of memory.

Called by backend.py. Works page by page, because a script blocks the server; each page decides anew what it removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ...errors import BackendUnavailable
from ...records import REMEMBER_SECONDS_MIN, TaskRule
from . import limits
from .connection import Connections
from .keys import KEY_NAMES
from .scripts import SCRIPTS

PRUNE_PAGE = 500  # jobs that one script removes, each with its edges and its places in the indexes
RELIEVE_PAGE, RELIEVE_PAGES_MAX = 500, 10

Kind = Literal["list", "count", "dead_age", "dead_count"]


def is_full(error: BackendUnavailable) -> bool:
    """Whether the server refused the call for lack of memory."""
    return str(error.__cause__).startswith("OOM")


class PruneVerbs:
    """The prune verbs of one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._tasks = connections.keys[KEY_NAMES.index("tasks")]

    async def _run(self, verb: str, now: float | None, *values: Any, pieces: Sequence[bytes] = ()) -> list[Any]:
        return await self._connections.run(SCRIPTS[verb], [now, *values], pieces)

    async def prune(self, limit: int, older_than: float | None, now: float | None) -> int:
        removed = await self._past_retention(limit, older_than, now)
        removed += await self.relieve(now=now)
        said = await self._connections.command("prune", "HGETALL", self._tasks)
        for rule in limits.task_rules(said):
            removed += await self._by_rule(rule, limit - removed, now)
        return removed

    async def relieve(self, *, refused: bool = False, now: float | None = None) -> int:
        """While the server is short of memory, remove finished jobs early. Returns how many.

        `refused`: it has just refused a call for lack of memory.
        """
        removed = 0
        for _ in range(1 if refused else RELIEVE_PAGES_MAX):
            number, more = await self._run("relieve", now, RELIEVE_PAGE, refused)
            removed += number
            if not more:
                break
        return removed

    async def _clock(self) -> float:
        seconds, micros = await self._connections.command("clock", "TIME")
        return int(seconds) + int(micros) / 1_000_000

    async def _past_retention(self, limit: int, older_than: float | None, now: float | None) -> int:
        before = None
        if older_than is not None:
            before = (await self._clock() if now is None else now) - max(older_than, REMEMBER_SECONDS_MIN)
        removed = start = lapsed = 0
        while (removed < limit and start >= 0) or lapsed >= PRUNE_PAGE:
            page = min(PRUNE_PAGE, limit - removed)
            number, start, lapsed = await self._run("prune", now, page, before, max(start, 0))
            removed += number
            if before is None and number == page:
                start = 0
        return removed

    async def _by_rule(self, rule: TaskRule, limit: int, now: float | None) -> int:
        removed = 0
        if rule.retain_count is not None:
            await self._pages("list", rule, 0, 1, now)
            removed += await self._pages("count", rule, rule.retain_count, limit, now)
        if rule.retain_dead is not None:
            before = (await self._clock() if now is None else now) - rule.retain_dead
            removed += await self._pages("dead_age", rule, before, limit - removed, now)
        if rule.retain_dead_count is not None:
            removed += await self._pages("dead_count", rule, rule.retain_dead_count, limit - removed, now)
        return removed

    async def _pages(self, what: Kind, rule: TaskRule, number: float, limit: int, now: float | None) -> int:
        removed, left, after = 0, None, b""
        while removed < limit:
            values = (what, rule.name, number, left, limit - removed, PRUNE_PAGE)
            gone, left, after = await self._run("retain", now, *values, pieces=[after])
            removed += gone
            if not after:
                break
        return removed
