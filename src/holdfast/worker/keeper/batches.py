"""Batches in the keeper: jobs of tasks with `batch=` wait here, leased but not begun, until a batch is full.

Used by the exchange loop, which adds the jobs of each claim, by the ledger and by both kinds of runners. A batch takes
one slot, from its first job on. It starts when it is full or its time is up; until then its jobs can be released at
no cost, so a stop, a cancel or a lost lease takes them out again. Makes no calls to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...context import Ended
from ...options import BATCH_WITHIN_SECONDS
from ...records import Lease, Release

if TYPE_CHECKING:
    from ...task import Task
    from .lease_renewal import Ledger
    from .runners import Runners


class Batching(NamedTuple):
    """How many jobs of a task form a batch, and how long to wait for them."""

    task: str  # its name, also for its aliases
    queue: str
    most: int
    within: float


class BatchPlan(NamedTuple):
    """The batch tasks of one version of the code."""

    by_task: Mapping[str, Batching] = {}  # by name and alias
    queues: frozenset[str] = frozenset()  # those whose tasks are all batch tasks

    def sizes(self) -> dict[str, int]:
        """The batch size of each task, for the worker status."""
        return {one.task: one.most for one in self.by_task.values()}

    def unchained(self, prefetch: Mapping[str, int]) -> dict[str, int]:
        """The queues' group_prefetch without the queues of batch tasks: jobs of one group must run one after another,
        and in a batch they would run together."""
        batched = {one.queue for one in self.by_task.values()}
        return {queue: number for queue, number in prefetch.items() if queue not in batched}


def batch_plan(tasks: Iterable[tuple[Sequence[str], str, int | None, float | None]]) -> BatchPlan:
    """The plan for tasks given as names, queue, batch and batch_within."""
    known = list(tasks)
    others = {queue for _, queue, most, _ in known if most is None}
    by_task = {
        name: Batching(names[0], queue, most, BATCH_WITHIN_SECONDS if within is None else within)
        for names, queue, most, within in known
        if most is not None
        for name in names
    }
    return BatchPlan(by_task, frozenset(one.queue for one in by_task.values()) - others)


def plan_of(tasks: Iterable[Task[..., Any]]) -> BatchPlan:
    return batch_plan(
        ((task.name, *task.defaults.aliases), task.defaults.queue, task.defaults.batch, task.defaults.batch_within)
        for task in tasks
    )


class Together:
    """Which of the held leases share a slot, because they are in the same batch.

    Most workers have no batches: callers check whether `of` is empty first.
    """

    __slots__ = ("behind", "of")

    def __init__(self) -> None:
        self.of: dict[str, dict[str, None]] = {}  # by token: the tokens of its batch that are held
        self.behind = 0  # leases other than the first of their batch

    def join(self, token: str, batch: dict[str, None]) -> None:
        """Add a lease to a batch, given by its tokens."""
        self.behind += bool(batch)
        batch[token] = None
        self.of[token] = batch

    def drop(self, token: str) -> None:
        """This lease is no longer held."""
        batch = self.of.pop(token, None)
        if batch is not None:
            del batch[token]
            self.behind -= bool(batch)

    @property
    def batches(self) -> int:
        return len(self.of) - self.behind

    def is_behind(self, token: str) -> bool:
        batch = self.of.get(token)
        return batch is not None and next(iter(batch)) != token

    def others(self, token: str) -> int:
        """How many other held leases are in its batch."""
        return max(0, len(self.of.get(token, ())) - 1)


class Gathering:
    """A batch of one task that is not full yet."""

    __slots__ = ("leases", "most", "timer", "tokens")

    def __init__(self, most: int) -> None:
        self.most = most
        self.leases: dict[str, Lease] = {}  # by token
        self.tokens: dict[str, None] = {}  # of the batch, in the ledger
        self.timer: asyncio.TimerHandle | None = None


class Gathered:
    """All jobs that wait in the keeper for their batch to fill."""

    def __init__(self, post: Callable[[list[Ended]], None]) -> None:
        self._post = post
        self.by_task: dict[str, Gathering] = {}

    @property
    def number(self) -> int:
        return sum(len(one.leases) for one in self.by_task.values())

    def take(self, task: str) -> list[Lease]:
        """Take out the jobs of a batch that starts now."""
        gathering = self.by_task.pop(task, None)
        if gathering is None:
            return []
        if gathering.timer is not None:
            gathering.timer.cancel()
        return list(gathering.leases.values())

    def withdraw(self, leases: Iterable[Lease]) -> list[Lease]:
        """Release those of these leases that wait here; return the others."""
        others: list[Lease] = []
        found: list[Ended] = []
        for lease in leases:
            gathering = next((one for one in self.by_task.values() if lease.token in one.leases), None)
            if gathering is None:
                others.append(lease)
                continue
            del gathering.leases[lease.token]
            found.append(Release(id=lease.id, token=lease.token))
        for task in [task for task, one in self.by_task.items() if not one.leases]:
            self.take(task)  # the next job restarts the clock
        if found:
            self._post(found)
        return others

    def give_back(self) -> None:
        """Release everything that waits here."""
        self.withdraw([lease for one in self.by_task.values() for lease in one.leases.values()])


class BatchStarter:
    """Collects the jobs of batch tasks, and starts each batch when it is full or its time is up."""

    def __init__(self, runners: Runners, ledger: Ledger, start: Callable[[list[Lease]], None]) -> None:
        self._runners, self._ledger, self._start = runners, ledger, start

    def gather(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease], int]:
        """Collect the jobs of batch tasks among these new leases. Return the other leases; the leases to release, which
        are chained behind a job that now waits for its batch; and how many slots the batches have taken. A suspect is
        not batched: it runs alone."""
        before = self._ledger.together.batches
        others: list[Lease] = []
        strays: list[Lease] = []
        cut = False  # the previous lease of the chain waits for its batch
        for lease in leases:
            how = self._runners.batches.by_task.get(lease.task)
            if lease.chained and (cut or how is not None):
                cut = True
                strays.append(lease)
            elif how is None or lease.suspect:
                cut = False
                others.append(lease)
            else:
                cut = True
                self._add(lease, how)
        return others, strays, self._ledger.together.batches - before

    def _add(self, lease: Lease, how: Batching) -> None:
        waiting = self._runners.gathered.by_task
        gathering = waiting.get(how.task)
        if gathering is None:
            gathering = waiting[how.task] = Gathering(how.most)
            loop = asyncio.get_running_loop()
            gathering.timer = loop.call_later(how.within, self._due, how.task, gathering)
        gathering.leases[lease.token] = lease
        self._ledger.together.join(lease.token, gathering.tokens)
        if len(gathering.leases) >= gathering.most:
            self._due(how.task, gathering)

    def _due(self, task: str, gathering: Gathering) -> None:
        gathered = self._runners.gathered
        if gathered.by_task.get(task) is gathering:
            self._start(gathered.take(task))

    def start_all(self) -> None:
        """Start every batch as it is, full or not."""
        for task, gathering in list(self._runners.gathered.by_task.items()):
            self._due(task, gathering)

    # ------------------------------------------------------------------ how many jobs a claim may return

    def room(self, free: int, queues: Iterable[str]) -> int:
        """How many jobs of these queues fit into `free` slots. If a queue has other tasks, each of their jobs takes
        a slot: then no more than `free`."""
        plan = self._runners.batches
        served = set(queues)
        if not served <= plan.queues:
            return free
        return self._fitting(free, {one for one in plan.by_task.values() if one.queue in served})

    def widened(
        self, by_queue: Mapping[str, int], by_task: Mapping[str, int]
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Convert caps counted in slots to caps counted in jobs."""
        plan = self._runners.batches.by_task
        return (
            {queue: self.room(free, (queue,)) for queue, free in by_queue.items()},
            {task: self._fitting(free, {plan[task]}) if task in plan else free for task, free in by_task.items()},
        )

    def _fitting(self, free: int, tasks: set[Batching]) -> int:
        """Every batch takes a slot, even the last one of each task, which may stay small."""
        if len(tasks) == 1:
            (only,) = tasks
            gathering = self._runners.gathered.by_task.get(only.task)
            return free * only.most + (0 if gathering is None else gathering.most - len(gathering.leases))
        return max(free, (free - len(tasks)) * min((one.most for one in tasks), default=1))
