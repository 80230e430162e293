"""What a worker holds: its leases, the slots its handlers occupy, and the outcomes not yet sent to the store.

Used by the keeper's modules, on the keeper's loop only. Pure bookkeeping: it makes no calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...lifecycle import Settlement
from ...records import Held, Lease, Release
from ..runner.outcomes import Ended, Gone, interrupted
from .store_client import AdaptiveLimit

BATCH_MAX = 1000  # outcomes in one exchange: bounds the store's work
BATCH_BYTES_MAX = 8 << 20  # of their values: a batch that cannot be sent within call_timeout would never succeed
BATCH_BYTES_MIN = 1 << 14


class Ledger:
    """A lease is in `leases` until the store reports otherwise; a slot is `busy` until its handler has stopped."""

    def __init__(
        self, slots: int, slots_by_queue: Mapping[str, int], slots_by_task: Mapping[str, int] | None = None
    ) -> None:
        self.leases: dict[str, Lease] = {}  # by token
        self.busy: dict[str, Lease] = {}  # by token; outlives `leases` if the handler of a lost lease has not stopped
        self.settlements: list[Settlement] = []
        self.releases: list[Release] = []
        self._jobs_limit = AdaptiveLimit(BATCH_MAX)
        self._bytes_limit = AdaptiveLimit(BATCH_BYTES_MAX, BATCH_BYTES_MIN)
        self._slots, self._slots_by_queue, self._slots_by_task = slots, slots_by_queue, slots_by_task or {}

    @property
    def unsent(self) -> bool:
        return bool(self.settlements or self.releases)

    def free(self) -> int:
        return max(0, self._slots - len(self.busy))

    def free_by_queue(self) -> Mapping[str, int]:
        """Free slots of queues with their own cap."""
        if not self._slots_by_queue:
            return {}
        taken = Counter(lease.queue for lease in self.busy.values())
        return {queue: max(0, cap - taken[queue]) for queue, cap in self._slots_by_queue.items()}

    def free_by_task(self) -> Mapping[str, int]:
        """Free slots of tasks with their own cap."""
        if not self._slots_by_task:
            return {}
        taken = Counter(lease.task for lease in self.busy.values())
        return {task: max(0, cap - taken[task]) for task, cap in self._slots_by_task.items()}

    def add(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.leases[lease.token] = self.busy[lease.token] = lease

    def ended(self, batch: Iterable[Ended]) -> None:
        """Handlers have stopped: free their slots and queue their outcomes for sending."""
        for end in batch:
            self.busy.pop(end.token, None)
            lease = self.leases.get(end.token)
            if lease is None:
                continue  # lost meanwhile: no outcome to send
            if isinstance(end, Gone) and lease.max_stalls == 0:
                # Given up but not lost: its part of the store is unreachable. A lease that renew does not name is
                # released and would run again, so keep naming it until that part has stored that this was the only run.
                end = interrupted(lease)
            if isinstance(end, Settlement):
                self.settlements.append(end)
            elif isinstance(end, Release):
                self.releases.append(end)
            else:
                del self.leases[end.token]

    @property
    def limits(self) -> tuple[AdaptiveLimit, ...]:
        """Adaptive bounds on the outcomes of one exchange; adjusted after each exchange."""
        return self._jobs_limit, self._bytes_limit

    def take(self) -> tuple[list[Settlement], list[Release]]:
        """Take out the outcomes for the next exchange."""
        most = self._jobs_limit.value
        number = self._sendable(most)
        settlements, self.settlements = self.settlements[:number], self.settlements[number:]
        releases, self.releases = self.releases[:most], self.releases[most:]
        return settlements, releases

    def _sendable(self, most: int) -> int:
        """How many settlements fit into one exchange; the first one always does, whatever its size."""
        size = 0
        for number, settlement in enumerate(self.settlements[:most]):
            size += 0 if settlement.value is None else len(settlement.value)
            if size > self._bytes_limit.value and number:
                return number
        return most

    def lease_refs(self) -> list[Held]:
        """All leases, in the form `renew` takes."""
        return [Held(lease.id, lease.token) for lease in self.leases.values()]

    def lose_all(self) -> list[Lease]:
        """The worker's row is gone and every lease with it. Return the leases it had."""
        lost = list(self.leases.values())
        self.leases.clear()
        self.settlements.clear()
        self.releases.clear()
        return lost
