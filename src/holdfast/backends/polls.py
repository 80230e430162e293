"""What a store may offer beyond the contract: to tell a polling worker, for less than a claim costs, that a claim would
find nothing.

Implemented by SQLite, where a claim is a commit, as it stores its number (R38); used by worker/keeper/polls.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class TellsNothingToClaim(Protocol):
    """A store that can be polled without a claim. A protocol, so that producers need not import it."""

    async def nothing_to_claim(self, worker: str, queues: Sequence[str], now: float | None = None) -> bool:
        """Whether a claim of these queues by this worker, whatever its room, would change nothing but its number.

        True only if one snapshot of the store shows that: the worker is known, the store is not sealed, and there is
        nothing to lease, recover, promote, refill or rearrange. False when in doubt. Never writes.
        """
