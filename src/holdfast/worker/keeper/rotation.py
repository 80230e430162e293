"""The order in which a worker claims from its queues. Used by the exchange loop; pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class QueueRotation:
    """The order in which a worker claims from its queues: round-robin, by weight, or fixed.

    A claim fills the free slots from the first queue before it looks at the next, so the order decides. Without
    weights, the queues take turns at being first. With weights, the queue with the fewest claimed jobs per weight goes
    first; a queue that was empty meanwhile accumulates no credit, so it cannot starve the others later.
    """

    def __init__(self, queues: tuple[str, ...], weights: Mapping[str, int], *, strict: bool) -> None:
        self._weights, self._strict = weights, strict
        self._served: dict[str, float] = {}
        self._asked = self.queues = queues
        self.serve(queues)

    def serve(self, queues: tuple[str, ...]) -> None:
        """Switch to these queues; new ones start level with the least-served one."""
        self._asked = self.queues = queues
        least = min(self._served.values(), default=0.0)
        self._served = {queue: self._served.get(queue, least) for queue in queues}

    def order(self) -> tuple[str, ...]:
        """The queues in the order of the next claim."""
        if not self._strict:
            self.queues = (*self.queues[1:], *self.queues[:1])  # also rotates queues that are level by weight
        if not self._weights:
            return self.queues
        self._asked = tuple(sorted(self.queues, key=lambda queue: self._served[queue]))
        return self._asked

    def claimed(self, leased: Iterable[str]) -> None:
        """Record the claimed jobs, one queue name per job, of the claim made in the latest order."""
        if not self._weights:
            return
        given = Counter(leased)
        if not given:
            return
        for queue, jobs in given.items():
            if queue in self._served:
                self._served[queue] += jobs / self._weights.get(queue, 1)
        last = max((number for number, queue in enumerate(self._asked) if queue in given), default=0)
        for queue in self._asked[:last]:  # they ran empty, so they accumulate no credit for unused slots
            self._served[queue] = max(self._served[queue], self._served[self._asked[last]])
        least = min(self._served.values())
        self._served = {queue: served - least for queue, served in self._served.items()}
