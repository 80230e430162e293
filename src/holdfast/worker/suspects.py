"""Which jobs were running when their runner process died, and how often: the poison is found, the innocent do not pay.

Used by the pool. A suspect's next run is alone in a runner of its own. A crash suffered alone counts towards the job's
max_stalls; one suffered among others says little about this job and has a higher cap of its own. Kept in this keeper's
memory and bounded: the store does not carry the marks yet.
"""

from __future__ import annotations

from ..records import Lease

SHARED_MAX = 10
KEPT_MAX = 10_000


class Suspects:
    """Counts crashes by job."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}  # id → (alone, shared), oldest first

    @property
    def any(self) -> bool:
        return bool(self._counts)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._counts

    def crashed(self, lease: Lease, *, alone: bool) -> bool:
        """Count a crash; whether the job has had one too many."""
        by_itself, shared = self._counts.pop(lease.id, (0, 0))
        by_itself, shared = (by_itself + 1, shared) if alone else (by_itself, shared + 1)
        if lease.max_stalls == 0 or lease.stalls + by_itself > lease.max_stalls or shared > SHARED_MAX:
            return True
        self._counts[lease.id] = by_itself, shared
        if len(self._counts) > KEPT_MAX:
            del self._counts[next(iter(self._counts))]
        return False

    def cleared(self, job_id: str) -> None:
        """It came to an end of its own."""
        self._counts.pop(job_id, None)
