"""Waiting for the store to say that there may be work.

Made by the settle + claim loop, on the keeper's loop. A hint is never more than a reason to look: whoever listens looks
once more after it began, and polls whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .line import Line

EARLY_SECONDS = 0.005  # a wake-up that comes sooner than this after listening began was there already
EARLY_FREE = 3  # so many of them in a row without work, and the next looks are slowed down
EARLY_WAIT_SECONDS_MAX = 0.05


class Listening:
    """One wait at a time; `heard` is called at its end."""

    def __init__(self, line: Line, poll_every: float, heard: Callable[[], None]) -> None:
        self._line, self._poll_every, self._heard = line, poll_every, heard
        self._task: asyncio.Task[None] | None = None
        self._early = 0

    @property
    def under_way(self) -> bool:
        return self._task is not None

    async def begin(self, queues: tuple[str, ...]) -> None:
        """Listen from now on."""
        self._task = asyncio.get_running_loop().create_task(self._wait(queues))
        await asyncio.sleep(0)

    def found_work(self) -> None:
        """The hints were worth it."""
        self._early = 0

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _wait(self, queues: tuple[str, ...]) -> None:
        began = self._line.clock.steady()
        try:
            await self._line.backend.wait_for_work(queues, self._poll_every)
        except Exception:  # a hint is not worth a worry: poll instead
            await asyncio.sleep(self._poll_every)
        if self._line.clock.steady() - began >= EARLY_SECONDS:
            self._early = 0
        else:  # perhaps it tells of jobs nobody may claim: do not spin on it
            self._early += 1
            if self._early > EARLY_FREE:
                await asyncio.sleep(min(EARLY_WAIT_SECONDS_MAX, 0.001 * 2.0 ** min(self._early - EARLY_FREE, 10)))
        self._task = None
        self._heard()
