"""How many jobs of each isolated task a claim may bring: the processes for isolated jobs are few and shared.

Owned by the pool, used for every claim. No I/O, no clock. A claim can cap each task but not several tasks together, so
the free processes are distributed among the isolated tasks. The sum never exceeds the free processes: claimed jobs
start at once, and the rest stays in the store for other workers. The remainder rotates from claim to claim, so that no
task starves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


class IsolatedSlots:
    """Distributes free processes among tasks, and remembers which tasks did not use up their share."""

    def __init__(self) -> None:
        self._first = 0
        self._sated: set[str] = set()

    def deal(self, free: int, tasks: Sequence[str]) -> dict[str, int]:
        """Per-task maximum for the next claim."""
        if not tasks:
            return {}
        each, odd = divmod(max(0, free), len(tasks))
        first, self._first = self._first % len(tasks), (self._first + odd) % len(tasks)
        return {task: each + ((place - first) % len(tasks) < odd) for place, task in enumerate(tasks)}

    def may_be_more(self, dealt: Mapping[str, int], claimed: Iterable[str]) -> bool:
        """Whether an immediate second claim may bring jobs that this one left because of the per-task maximum.

        `claimed` are the tasks of the claimed jobs. False if no process is left, or if every task has had its chance
        without using all of its share; a new round begins then.
        """
        if not dealt:
            return False
        taken = Counter(task for task in claimed if task in dealt)
        for task, most in dealt.items():
            if taken[task] < most:
                self._sated.add(task)
            elif most:
                self._sated.discard(task)
        more = taken.total() < sum(dealt.values()) and not self._sated.issuperset(dealt)
        if not more:
            self._sated.clear()
        return more
