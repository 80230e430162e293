"""Which limits, rates and lanes are in force, and what they let a claim have now.

Called by store.py, on top of the index. What runs is counted by the index as jobs move; a bucket is charged by claim
alone. It never moves a job to another state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.lifecycle import State
from holdfast.rates import UNLIMITED, Rate, allowed, bounded, charged, opens_at
from holdfast.records import LIFO, SERIAL_PREFIX, ClaimRequest, Flow, Override, TaskRule

from .index import Index
from .rows import LANE_APART, LANE_GROUPED, LANE_PARKED, LANE_UNGROUPED, GroupName, LaneName, Row, Scope

_NOTHING_SAID = Override(limit=None, rate=None, apart=None, weight=None)


class FlowIndex(Index):
    """The index with the rules by which jobs may start."""

    # ------------------------------------------------------------------ what is in force

    def strict(self, queue: str, group: str | None) -> bool:
        if group is not None and group.startswith(SERIAL_PREFIX):
            return True
        rule = self.rules.get(queue)
        return rule is None or rule.group_order == "strict"

    def stops(self, queue: str, group: str) -> bool:
        """Whether a job that dies at the end of its lease stops its group."""
        rule = self.rules.get(queue)
        return rule is not None and rule.on_dead == "stop" and self.strict(queue, group)

    def weight(self, name: GroupName) -> int:
        said = self.overrides.get((*name, None), _NOTHING_SAID).weight
        return said if isinstance(said, int) else 1

    def order_window(self, queue: str) -> float | None:
        rule = self.rules.get(queue)
        return None if rule is None else rule.order_window

    def group_limit(self, name: GroupName) -> int:
        """How many jobs a group may have in play."""
        if (name[0], name[1], None) in self.pauses:
            return 0
        if self.strict(*name):
            return 1
        said = self.overrides.get((*name, None), _NOTHING_SAID).limit
        return said if isinstance(said, int) else self.rules[name[0]].group_limit

    def group_rate(self, name: GroupName) -> Rate | None:
        rule = self.rules.get(name[0])
        return _rate(self.overrides.get((*name, None)), None if rule is None else rule.group_rate)

    def queue_limit(self, queue: str) -> int:
        rule = self.rules.get(queue)
        return _limit(self.overrides.get((queue, None, None)), None if rule is None else rule.limit)

    def queue_rate(self, queue: str) -> Rate | None:
        rule = self.rules.get(queue)
        return _rate(self.overrides.get((queue, None, None)), None if rule is None else rule.rate)

    def task_limit(self, task: str) -> int:
        rule = self.task_rules.get(task)
        return _limit(self.overrides.get((None, None, task)), None if rule is None else rule.limit)

    def task_rate(self, task: str) -> Rate | None:
        rule = self.task_rules.get(task)
        return _rate(self.overrides.get((None, None, task)), None if rule is None else rule.rate)

    def apart(self, task: str) -> bool:
        """Whether the ready jobs of a task have a lane of their own."""
        if task not in self.task_rules and (None, None, task) not in self.overrides:
            return False
        rule = self.task_rules.get(task) or TaskRule(name=task)
        said = self.overrides.get((None, None, task), _NOTHING_SAID)
        return rule.apart or said.apart is True or self.task_limit(task) < UNLIMITED or self.task_rate(task) is not None

    def tasks_apart(self) -> list[str]:
        named = {*self.task_rules, *(task for _, _, task in self.overrides if task is not None)}
        return sorted(task for task in named if self.apart(task))

    def lane_of(self, row: Row) -> int:
        if (None, None, row.task) in self.pauses:
            return LANE_PARKED
        if self.apart(row.task):
            return LANE_APART
        return LANE_UNGROUPED if row.group is None else LANE_GROUPED

    def age_shift(self, row: Row) -> int | None:
        """By how many ticks the priority moves a turn forward where the queue ages its jobs; None where it does not."""
        rule = self.rules.get(row.queue)
        if rule is None or rule.aging is None or rule.aging < 0:
            return None
        return int(row.priority * rule.aging * 1_000_000 // 1)

    def newest_first(self, row: Row) -> bool:
        """Whether it is taken before those that became ready earlier."""
        rule = self.rules.get(row.queue)
        return row.group is None and rule is not None and rule.aging == LIFO

    # ------------------------------------------------------------------ what may start now

    def flow_of(self, scope: Scope) -> Flow:
        queue, group, task = scope
        return self.flows.get(scope) or Flow(queue=queue, group=group, task=task)

    def set_back(self, rate: Rate | None, scope: Scope, wall: float) -> None:
        """A bucket that is further ahead than its rate can have brought it: the rate was raised, the clock set back."""
        flow = self.flows.get(scope)
        if rate is not None and flow is not None:
            spent_until = bounded(rate, flow.spent_until, wall)
            if spent_until != flow.spent_until:
                self.keep_flow(replace(flow, spent_until=spent_until))

    def bucket_room(self, rate: Rate | None, scope: Scope, wall: float) -> int:
        return UNLIMITED if rate is None else allowed(rate, self.flow_of(scope).spent_until, wall)

    def charge(self, rate: Rate | None, scope: Scope, wall: float, starts: int) -> None:
        if rate is not None and starts:
            flow = self.flow_of(scope)
            self.keep_flow(replace(flow, spent_until=charged(rate, flow.spent_until, wall, starts)))

    def shut(self, queue: str, wall: float) -> bool:
        return self.flow_of((queue, None, None)).shut_until > wall

    def queue_room(self, queue: str, wall: float) -> int:
        """How many more of a queue may start; 0 while it is paused or slowed down."""
        if (queue, None, None) in self.pauses or self.shut(queue, wall):
            return 0
        by_limit = self.queue_limit(queue) - self.counts[queue][State.RUNNING]
        return min(by_limit, self.bucket_room(self.queue_rate(queue), (queue, None, None), wall))

    def task_room(self, task: str, wall: float) -> int:
        by_limit = self.task_limit(task) - self.running_tasks[task]
        return min(by_limit, self.bucket_room(self.task_rate(task), (None, None, task), wall))

    def apart_lanes(self, queue: str) -> Iterator[LaneName]:
        """The lanes of tasks apart that have ready jobs in this queue, by name."""
        for task in self.tasks_apart():
            if len(self.lanes.get((queue, LANE_APART, task), ())):
                yield (queue, LANE_APART, task)

    def claimable(self, queue: str, wall: float) -> bool:
        """Whether a claim of this queue would lease something now."""
        if self.queue_room(queue, wall) <= 0:
            return False
        if any(len(self.lanes.get((queue, lane, ""), ())) for lane in (LANE_UNGROUPED, LANE_GROUPED)):
            return True
        return any(self.task_room(lane[2], wall) > 0 for lane in self.apart_lanes(queue))

    def opens_at(self, queues: Iterable[str], wall: float) -> float | None:
        """When the first bucket or slow-down that holds ready jobs of these queues back lets one more start."""
        opens: list[float] = []
        for queue in queues:
            if (queue, None, None) in self.pauses:
                continue
            apart = list(self.apart_lanes(queue))
            if not apart and not any(len(self.lanes.get((queue, lane, ""), ())) for lane in (0, 1)):
                continue
            scopes: list[tuple[Scope, Rate | None]] = [((queue, None, None), self.queue_rate(queue))]
            scopes += [((None, None, task), self.task_rate(task)) for _, _, task in apart]
            for scope, rate in scopes:
                flow = self.flows.get(scope)
                if flow is None:
                    continue
                until = flow.shut_until
                if rate is not None and allowed(rate, flow.spent_until, wall) == 0:
                    until = max(until, opens_at(rate, flow.spent_until))
                if until > wall:
                    opens.append(until)
        return min(opens, default=None)

    def _place_freed(self, row: Row) -> None:
        if self.queue_limit(row.queue) < UNLIMITED:
            self.stirred.add(row.queue)
        if self.task_limit(row.task) < UNLIMITED:
            self.stirred.update(queue for queue, lane, task in self.lanes if lane == LANE_APART and task == row.task)


class Allowance:
    """What one claim may still take: every bucket is read once, and charged once when the claim is done."""

    def __init__(self, store: FlowIndex, request: ClaimRequest, wall: float) -> None:
        self._store, self._request, self._wall = store, request, wall
        self._buckets: dict[Scope, int] = {}
        self._leased: Counter[Scope] = Counter()

    def of_queue(self, queue: str, left: int) -> int:
        store = self._store
        by_bucket = self._bucket(store.queue_rate(queue), (queue, None, None))
        if store.queue_room(queue, self._wall) <= 0:
            return 0
        by_limit = store.queue_limit(queue) - store.counts[queue][State.RUNNING]
        return min(left, self._request.most_by_queue.get(queue, left), by_limit, by_bucket)

    def of_lane(self, lane: LaneName) -> int:
        if lane[1] != LANE_APART:
            return UNLIMITED
        task, store = lane[2], self._store
        scope = (None, None, task)
        given = self._request.most_by_task.get(task, UNLIMITED) - self._leased[scope]
        by_limit = store.task_limit(task) - store.running_tasks[task]
        return min(given, by_limit, self._bucket(store.task_rate(task), scope))

    def _bucket(self, rate: Rate | None, scope: Scope) -> int:
        if scope not in self._buckets:
            self._store.set_back(rate, scope, self._wall)
            self._buckets[scope] = self._store.bucket_room(rate, scope, self._wall)
        return self._buckets[scope] - self._leased[scope]

    def took(self, row: Row) -> None:
        self._leased[row.queue, None, None] += 1
        self._leased[None, None, row.task] += 1
        if row.group is not None:
            self._leased[row.queue, row.group, None] += 1

    def charge(self) -> None:
        store = self._store
        for scope, starts in self._leased.items():
            queue, group, task = scope
            if task is not None:
                rate = store.task_rate(task)
            elif group is not None:
                rate = store.group_rate((queue or "", group))
            else:
                rate = store.queue_rate(queue or "")
            store.charge(rate, scope, self._wall, starts)


def _limit(said: Override | None, declared: int | None) -> int:
    if said is not None and isinstance(said.limit, int):
        return said.limit
    return UNLIMITED if declared is None else declared


def _rate(said: Override | None, declared: Rate | None) -> Rate | None:
    """The rate in force; None: there is none, or it was lifted."""
    rate = said.rate if said is not None and isinstance(said.rate, Rate) else declared
    return None if rate is None or rate.none else rate


def merged(said: Override, before: Override | None) -> Override | None:
    """An operator's new word over the earlier one; None where nothing is said any more."""
    before = before or _NOTHING_SAID
    limit = before.limit if said.limit is UNSET else said.limit
    rate = before.rate if said.rate is UNSET else said.rate
    apart = before.apart if said.apart is UNSET else said.apart
    if said.task is None or apart is False:
        apart = None  # a word on a task alone, and False says nothing that the code does not
    weight = before.weight if said.weight is UNSET else said.weight
    if limit is None and rate is None and apart is None and weight is None:
        return None
    return replace(said, limit=limit, rate=rate, apart=apart, weight=weight)
