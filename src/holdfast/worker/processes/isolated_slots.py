"""How many jobs of each isolated task a claim may bring: processes for jobs that run alone are few, and shared.

Kept by the pool, asked for every claim. Does no I/O and knows no clock. A claim can cap each task but not several
together, so the free processes are dealt out among the isolated tasks. The sum is never more than there are: what is
claimed begins at once, and the rest stays in the store for other workers. Who gets the odd ones changes from claim to
claim, so that no task is left out for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


class IsolatedSlots:
    """Deals out free processes, and remembers which tasks had their chance and did not use it."""

    def __init__(self) -> None:
        self._first = 0
        self._sated: set[str] = set()

    def deal(self, free: int, tasks: Sequence[str]) -> dict[str, int]:
        """Most jobs of each task in the next claim."""
        if not tasks:
            return {}
        each, odd = divmod(max(0, free), len(tasks))
        first, self._first = self._first % len(tasks), (self._first + odd) % len(tasks)
        return {task: each + ((place - first) % len(tasks) < odd) for place, task in enumerate(tasks)}

    def may_be_more(self, dealt: Mapping[str, int], claimed: Iterable[str]) -> bool:
        """Whether another claim, at once, may bring jobs that this one left because of what was dealt out.

        `claimed` are the tasks of the jobs that came. No, where no process is left, and where every task has had its
        chance without using all of it: with this answer a new round begins.
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
