"""Two halves in turn: where strict groups give a worker fewer jobs than it has slots, it claims them half by half.

Used by the exchange loop; pure bookkeeping. The next jobs of a hundred groups become ready when the ones before are
settled. If all of those end together, and all that follow start together, handlers wait for the store and then the
store for handlers. So once, when all have ended, a claim brings half of them, and the next claim, made at once, the
other half while the first one runs. From then on each exchange settles one half and brings what follows it, while the
other half runs: nothing has to keep them apart.
"""

from __future__ import annotations

JOBS_MIN = 64  # fewer are not worth two exchanges: half of the cost of a small one is fixed
RUNNING_PART = 0.4  # while more than this part of the jobs is still running, there are two halves already
IDLE_EXCHANGES_MAX = 4.0  # jobs that ran for longer than this many exchanges take do not wait for the store much


class Halves:
    """Whether a worker's jobs begin and end together."""

    def __init__(self) -> None:
        self._held = 0  # slots taken since the latest claim that brought jobs, unless it could have brought more
        self._answered_at = 0.0
        self.halving = False  # whether the next claim brings only half of the jobs

    def claimed(self, number: int, taken: int, now: float, *, full: bool) -> None:
        """A claim brought so many jobs, beside those that take slots already. `full`: as many as it was to bring."""
        self._answered_at = now
        if number:
            self._held = 0 if full else number + taken

    def alternate(self, ended: int, running: int, now: float, exchange_seconds: float) -> bool:
        """Whether the next claim should bring only half of the jobs: nearly all have ended, soon after they came."""
        self.halving = (
            self._held >= JOBS_MIN
            and running < RUNNING_PART * (running + ended)
            and now - self._answered_at <= IDLE_EXCHANGES_MAX * exchange_seconds
        )
        return self.halving

    @property
    def size(self) -> int:
        return -(-self._held // 2)
