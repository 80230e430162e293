"""One pass of refill: the safety net under groups that have waiting jobs and room.

Called by the worker's sweeps and by a drain. It finds nothing while all is well.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 500


async def refill(backend: Backend, limit: int = LIMIT) -> int:
    return await backend.refill(limit=limit)
