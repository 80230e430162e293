"""In which order a worker asks its queues for work: in rotation, by weight, or always the same.

Used by the settle + claim loop, once per claim. Pure bookkeeping. A claim fills the free slots from the first queue
before it looks at the next, so whoever goes first decides. Without weights each queue is first in turn. With weights
the queue goes first that has had the least, counted in jobs per weight; one that had nothing to give meanwhile keeps
no credit, so it cannot shut the others out later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class QueueRotation:
    """Whose turn it is."""

    def __init__(self, queues: tuple[str, ...], weights: Mapping[str, int], *, strict: bool) -> None:
        self._weights, self._strict = weights, strict
        self._served: dict[str, float] = {}
        self._asked = self.queues = queues
        self.serve(queues)

    def serve(self, queues: tuple[str, ...]) -> None:
        """These queues from now on."""
        self._asked = self.queues = queues
        least = min(self._served.values(), default=0.0)
        self._served = {queue: self._served.get(queue, least) for queue in queues}

    def order(self) -> tuple[str, ...]:
        """The queues in the order of the next claim."""
        if not self._strict:
            self.queues = (*self.queues[1:], *self.queues[:1])  # also among those that are equal
        if not self._weights:
            return self.queues
        self._asked = tuple(sorted(self.queues, key=lambda queue: self._served[queue]))
        return self._asked

    def took(self, leased: Iterable[str]) -> None:
        """These queues gave a job each in the claim that was asked in the latest order."""
        if not self._weights:
            return
        given = Counter(leased)
        if not given:
            return
        for queue, jobs in given.items():
            if queue in self._served:
                self._served[queue] += jobs / self._weights.get(queue, 1)
        last = max((place for place, queue in enumerate(self._asked) if queue in given), default=0)
        for queue in self._asked[:last]:  # they had no more: what they did not take is not owed to them
            self._served[queue] = max(self._served[queue], self._served[self._asked[last]])
        least = min(self._served.values())
        self._served = {queue: served - least for queue, served in self._served.items()}
