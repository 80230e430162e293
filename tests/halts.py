"""How long this machine kept us waiting: for tests of promises in seconds, on machines that stand still now and then.

A thread of its own wants to wake every few milliseconds and adds up by how much it came late. What a promise in seconds
may be late by is that much, and no more.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

TICK_SECONDS = 0.02


class Halts:
    """`with Halts() as halts:` … `halts.seconds` so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def _tick(self) -> None:
        before = time.monotonic()
        while not self._over.wait(TICK_SECONDS):
            now = time.monotonic()
            self.seconds += max(0.0, now - before - TICK_SECONDS)
            before = now

    def __enter__(self) -> Halts:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
