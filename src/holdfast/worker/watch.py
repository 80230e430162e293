"""Looking at the store from outside: has it fallen silent?

Run by the keeper beside its calls. It only tells; it stops nothing.
"""

from __future__ import annotations

import asyncio

from .. import events, logs
from ..options import WorkerOptions
from .line import Line
from .link import Link

LOOK_EVERY_SECONDS = 0.25


class Watch:
    """Watches the store's silence; each one is told once."""

    def __init__(self, line: Line, link: Link, options: WorkerOptions) -> None:
        self._line, self._link = line, link
        self._patience = options.lease / 4
        self._told = False

    async def watch_forever(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_EVERY_SECONDS, self._patience / 2))
            self._look()

    def _look(self) -> None:
        since = self._line.down_since
        if since is None:
            self._told = False
            return
        seconds = self._line.clock.steady() - since
        if seconds > self._patience and not self._told:
            self._told = True
            logs.store_blocked(seconds, self._line.last_error)
            self._link.tell(events.StoreBlocked(worker=self._link.worker, seconds=seconds, error=self._line.last_error))
