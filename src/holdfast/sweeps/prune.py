"""One pass of prune: finished jobs past their retention.

Called by the keeper's sweeping. Never takes a job that holds its dead letter, nor an unfinished one: the store sees to it.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 1000


async def prune(backend: Backend) -> int:
    return await backend.prune(limit=LIMIT)
