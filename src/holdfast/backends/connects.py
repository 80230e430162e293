"""How often a store that is out of reach is tried: one pace for all who connect to it through one store object.

Called by the connections of stores that are servers, from any thread or loop. While all is well it says nothing. After
a connection that failed the next one has to wait, and whoever comes meanwhile hears how that one went. So a worker
whose renewals, claims, sweeps and hints all look for the store tries it about four times a second, whatever its lease.
Holds no lock: two who take one turn at the same instant are no harm, and a fork cannot leave it locked.
"""

from __future__ import annotations

import asyncio
import math
import random
import select
import time

from ..errors import HoldfastError

GAP_SECONDS = 0.2  # between two tries, and up to half of it more, so that many workers do not come together


class Pace:
    """Whose turn it is to connect."""

    def __init__(self) -> None:
        self._failure: HoldfastError | None = None  # how the latest try went
        self._failures = 0
        self._next_at = 0.0

    async def turn(self) -> None:
        """Wait until a connection may be tried. Raises what another one met meanwhile."""
        seen = self._failures
        while seconds := self._seconds(seen):  # noqa: ASYNC110  an event belongs to one loop
            await asyncio.sleep(seconds)

    def turn_here(self) -> None:
        """As `turn`, for a thread."""
        seen = self._failures
        while seconds := self._seconds(seen):
            time.sleep(seconds)

    def _seconds(self, seen: int) -> float:
        failure = self._failure
        if failure is None:
            return 0.0
        if self._failures != seen:
            raise type(failure)(*failure.args) from failure.__cause__
        now = time.monotonic()
        if now < self._next_at:
            return self._next_at - now
        self._next_at = now + random.uniform(1.0, 1.5) * GAP_SECONDS
        return 0.0

    def failed(self, error: HoldfastError) -> None:
        if self._failure is None:
            self._next_at = time.monotonic() + random.uniform(1.0, 1.5) * GAP_SECONDS
        self._failure, self._failures = error, self._failures + 1

    def succeeded(self) -> None:
        self._failure = None


# ----------------------------------------------------------------------------------------------------------------------
# Looking at a socket from outside an event loop: is there something to read on it, or room to write?
#
# Called by the stores' connections. Never reads or writes.


def is_ready(number: int, seconds: float = 0.0, *, writing: bool = False) -> bool:
    """Whether within `seconds` something can be read (or, if asked, written) on the socket with this descriptor.

    By poll, which unlike select takes a descriptor above 1023, as busy web servers have them.
    """
    if not hasattr(select, "poll"):  # Windows
        return any(select.select([number], [number] if writing else [], [], seconds))
    looking = select.poll()
    looking.register(number, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
    return bool(looking.poll(math.ceil(seconds * 1000)))
