"""Threads for sync handlers: as many as are needed, daemons, reused.

Called by the runner. Unlike the standard pool its threads never hold up the end of the process: a handler that does
not stop must not keep the whole program, and nothing here pretends that a thread could be killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class ThreadPool:
    """Calls functions in at most `most` threads. `submit` and `close` belong to one thread, the loop's."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call`, which must not raise, as soon as a thread is free."""
        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()

    def close(self) -> None:
        """Let idle threads go now and busy ones when their call ends. Waits for none."""
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # hold nothing of the last attempt while idle
            self._idle.release()
