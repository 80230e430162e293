"""What jobs queue for in the simulation: processors, a disk with group commit, locks with one holder at a time.

Used by simulation.py. Pure and deterministic: time is a number, and events of the same moment happen in the order in
which they were created.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable

Then = Callable[[], None]


class Timeline:
    """Events in the order of their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._made = 0
        self._events: list[tuple[float, int, Then]] = []

    def after(self, seconds: float, then: Then) -> None:
        self._made += 1
        heapq.heappush(self._events, (self.now + seconds, self._made, then))

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, then = heapq.heappop(events)
            then()
        self.now = until


class Usage:
    """How long something was in use, since a given moment."""

    def __init__(self, timeline: Timeline, number: int) -> None:
        self._timeline, self._number = timeline, number
        self._used = self._since = self._began = 0.0
        self.busy = 0

    def change(self, by: int) -> None:
        self._note()
        self.busy += by

    def _note(self) -> None:
        now = self._timeline.now
        self._used += self.busy * (now - self._since)
        self._since = now

    def begin_anew(self) -> None:
        self._note()
        self._used, self._began = 0.0, self._timeline.now

    @property
    def mean(self) -> float:
        """How many were in use on average."""
        self._note()
        span = self._timeline.now - self._began
        return self._used / span if span else 0.0

    @property
    def share(self) -> float:
        return self.mean / self._number


class Cores:
    """A number of processors of a given speed, first come, first served."""

    def __init__(self, timeline: Timeline, number: int, speed: float = 1.0) -> None:
        self._timeline, self._number, self._speed = timeline, number, speed
        self._waiting: deque[tuple[float, Then]] = deque()
        self.usage = Usage(timeline, number)

    def work(self, seconds: float, then: Then) -> None:
        if self.usage.busy < self._number:
            self._begin(seconds, then)
        else:
            self._waiting.append((seconds, then))

    def _begin(self, seconds: float, then: Then) -> None:
        self.usage.change(+1)
        self._timeline.after(seconds / self._speed, lambda: self._end(then))

    def _end(self, then: Then) -> None:
        self.usage.change(-1)
        if self._waiting:
            self._begin(*self._waiting.popleft())
        then()


class Process:
    """Something that uses one processor at a time, either its own or one of a shared machine."""

    def __init__(self, timeline: Timeline, cores: Cores, threads: int = 1) -> None:
        self._cores, self._threads = cores, threads
        self._waiting: deque[tuple[float, Then]] = deque()
        self.usage = Usage(timeline, threads)

    def work(self, seconds: float, then: Then) -> None:
        if self.usage.busy < self._threads:
            self._begin(seconds, then)
        else:
            self._waiting.append((seconds, then))

    def _begin(self, seconds: float, then: Then) -> None:
        self.usage.change(+1)
        self._cores.work(seconds, lambda: self._end(then))

    def _end(self, then: Then) -> None:
        self.usage.change(-1)
        if self._waiting:
            self._begin(*self._waiting.popleft())
        then()


class Disk:
    """Commits wait for the disk in groups: those that arrive while it is busy go together with the next write."""

    def __init__(self, timeline: Timeline, seconds: Callable[[], float]) -> None:
        self._timeline, self._seconds = timeline, seconds
        self._waiting: list[Then] = []
        self.usage = Usage(timeline, 1)

    def sync(self, then: Then) -> None:
        self._waiting.append(then)
        if not self.usage.busy:
            self._begin()

    def _begin(self) -> None:
        group, self._waiting = self._waiting, []
        self.usage.change(+1)
        self._timeline.after(self._seconds(), lambda: self._end(group))

    def _end(self, group: list[Then]) -> None:
        self.usage.change(-1)
        for then in group:
            then()
        if self._waiting and not self.usage.busy:
            self._begin()


class StoreHandle:
    """Names, each held by one caller at a time. A caller that wants several gets them all at once, in order."""

    def __init__(self, timeline: Timeline) -> None:
        self._held: set[object] = set()
        self._waiting: list[tuple[frozenset[object], Then]] = []
        self.usage = Usage(timeline, 1)  # in use: a caller is waiting

    def enter(self, names: Iterable[object], then: Then) -> None:
        wanted = frozenset(names)
        if wanted & self._held or any(wanted & before for before, _ in self._waiting):
            self._waiting.append((wanted, then))
            if len(self._waiting) == 1:
                self.usage.change(+1)
            return
        self._held |= wanted
        then()

    def leave(self, names: Iterable[object]) -> None:
        self._held -= frozenset(names)
        if not self._waiting:
            return
        before, stay, go = set(self._held), [], []
        for wanted, then in self._waiting:
            if wanted & before:
                stay.append((wanted, then))
            else:
                go.append((wanted, then))
            before |= wanted  # no caller overtakes another that waits for the same name
        self._waiting = stay
        if not stay:
            self.usage.change(-1)
        for wanted, _ in go:
            self._held |= wanted
        for _, then in go:
            then()
