"""One pass of tick over one cron entry: fire what is due, once however many workers try.

Called by the worker's ticker. It decides nothing: ticking.py does, and the store takes only the first of several.
"""

from __future__ import annotations

from ..backends.contract import Backend
from ..cron.changing import write
from ..cron.ticking import decide
from ..entries import CronEntry
from ..records import Ticked


async def tick(backend: Backend, entry: CronEntry, now: float) -> Ticked | None:
    """Fire the entry's due ticks; None: none is due."""
    decided = decide(entry, now)
    return None if decided is None else await write(backend, decided)
