"""Reconnect pacing, shared by all connections of one store object, and polling of a socket outside an event loop.

Called by the connections of server stores, from any thread or loop. `Pace` does nothing while connecting works. After a
failed connect the next attempt has to wait, and all callers that wait meanwhile get that attempt's error. So a worker
whose renewals, claims, sweeps and wake-ups all need the store tries it about four times a second, whatever its lease.
It holds no lock: two callers that try at the same instant do no harm, and a fork cannot leave it locked.
"""

from __future__ import annotations

import asyncio
import math
import random
import select
import time

from ..errors import HoldfastError

GAP_SECONDS = 0.2  # between two attempts, plus up to half of it, so that many workers do not reconnect at once


class Pace:
    """Decides when the next connection attempt may be made."""

    def __init__(self) -> None:
        self._failure: HoldfastError | None = None  # error of the latest attempt
        self._failures = 0
        self._next_at = 0.0

    async def turn(self) -> None:
        """Wait until a connection attempt is allowed. Raises the error of another attempt that failed meanwhile."""
        seen = self._failures
        while seconds := self._seconds(seen):  # noqa: ASYNC110  an event belongs to one loop
            await asyncio.sleep(seconds)

    def turn_here(self) -> None:
        """Like `turn`, for a thread."""
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
# Polling a socket. Never reads or writes.


def is_ready(number: int, seconds: float = 0.0, *, writing: bool = False) -> bool:
    """Whether the socket becomes readable (or, with `writing`, writable) within `seconds`.

    Uses poll, which unlike select accepts descriptors above 1023, as busy web servers have them.
    """
    if not hasattr(select, "poll"):  # Windows
        return any(select.select([number], [number] if writing else [], [], seconds))
    looking = select.poll()
    looking.register(number, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
    return bool(looking.poll(math.ceil(seconds * 1000)))
