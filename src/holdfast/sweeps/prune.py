"""One pass of prune: finished jobs past their retention.

Called by the keeper's sweeping. The store never lets it take an unfinished job or one that holds its
dead letter.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 1000


async def prune(backend: Backend) -> int:
    return await backend.prune(limit=LIMIT)
