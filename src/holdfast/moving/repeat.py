"""Asking a store again while it is busy or silent.

Called by the mover and the comparison. Only for what is harmless when repeated: reads, carrying, exchanging a seal.
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
RETRY_FOR_SECONDS = 30.0  # a store that is silent for longer ends the mover; started again it goes on


async def patiently(ask: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
    """The answer, asked for again and again for so long; then the store's own error goes out."""
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
