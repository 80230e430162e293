"""One piece of rearrange: jobs and groups that a changed rule has not reached yet.

Called by the worker's sweeps and, to the end, by the mover before it seals. It finds nothing unless a rule changed
while more jobs were there than its own step moves.
"""

from __future__ import annotations

from ..backends.contract import Backend

LIMIT = 500


async def rearrange(backend: Backend, limit: int = LIMIT) -> bool:
    """Whether there is more to do."""
    return await backend.rearrange(limit=limit)
