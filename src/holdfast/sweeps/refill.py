"""One pass of refill: the safety net under groups that have waiting jobs and room.

Called by the keeper's sweeping and by a drain. It finds nothing while all is well.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 500


async def refill(backend: Backend) -> int:
    return await backend.refill(limit=LIMIT)
