"""Who sleeps until there may be work, and how any thread wakes them.

Called by backend.py. Wake-ups are hints: a sleeper that is woken for nothing claims nothing and sleeps again. It never
looks at jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class Wakeups:
    """Futures on their own loops, by the queues they wait for. The caller guards it with its lock."""

    def __init__(self) -> None:
        self._beds: dict[asyncio.Future[None], frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._beds)

    def add(self, queues: Collection[str]) -> asyncio.Future[None]:
        bed = asyncio.get_running_loop().create_future()
        self._beds[bed] = frozenset(queues)
        return bed

    def remove(self, bed: asyncio.Future[None]) -> None:
        self._beds.pop(bed, None)

    def wake(self, queues: Collection[str]) -> None:
        """Wake everyone who waits for one of these queues."""
        for bed in [bed for bed, wanted in self._beds.items() if not wanted.isdisjoint(queues)]:
            del self._beds[bed]
            try:
                bed.get_loop().call_soon_threadsafe(_rouse, bed)
            except RuntimeError:
                continue  # its loop is closed: nobody is asleep there any more


def _rouse(bed: asyncio.Future[None]) -> None:
    if not bed.done():
        bed.set_result(None)
