"""Retrying store calls while the store is busy or unresponsive.

Called by the mover and the comparison. Only for idempotent calls: reads, copying, exchanging a seal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import BackendUnavailable, OutcomeUnknown

T = TypeVar("T")

RETRY_FIRST_SECONDS = 0.1
RETRY_MOST_SECONDS = 2.0
RETRY_FOR_SECONDS = 30.0  # a longer outage ends the mover; restarted, it continues


async def patiently(ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
    """Return the result, retrying for this long; then raise the store's own error."""
    deadline = time.monotonic() + (RETRY_FOR_SECONDS if seconds is None else seconds)
    pause = RETRY_FIRST_SECONDS
    while True:
        try:
            return await ask()
        except (BackendUnavailable, OutcomeUnknown):
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_MOST_SECONDS)
