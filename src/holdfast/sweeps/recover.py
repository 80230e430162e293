"""One pass of recover: the leases of workers whose deadline passed, or that are proved dead.

Called by the worker's sweeps and its start-up clean-up. It decides nothing: the store does, by the same routine that
claim uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.contract import Backend
from ..records import Recovered

LIMIT = 500


async def recover(backend: Backend, dead: Sequence[str] = (), limit: int = LIMIT) -> list[Recovered]:
    return await backend.recover(dead=dead, limit=limit)
