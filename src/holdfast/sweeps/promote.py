"""One pass of promote: due jobs into play, expired ones buried, dead letters revived that are due for it.

Called by the worker's sweeps and by a drain that asks whether anything is left. Never loops by itself.
"""

from __future__ import annotations

from ..backends.contract import Backend
from ..records import Promoted

LIMIT = 500


async def promote(backend: Backend, limit: int = LIMIT) -> Promoted:
    return await backend.promote(limit=limit)
