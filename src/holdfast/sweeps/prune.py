"""One pass of prune: finished jobs past their retention.

Called by the worker's sweeps. The store never lets it take an unfinished job or one that holds its
dead letter.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 1000


async def prune(backend: Backend, limit: int = LIMIT) -> int:
    return await backend.prune(limit=limit)
