"""Threads for sync handlers: as many as are needed, daemons, reused.

Called by the runner. Unlike the standard pool its threads never hold up the end of the process: a handler that does
not stop must not keep the whole program, and nothing here pretends that a thread could be killed.

Waking a thread costs more than a short handler. So one is woken at a time, and each that takes a call wakes the next
where calls are left: handlers that block get a thread each, at once; short ones are over before the next thread comes.

The system may refuse a thread. Then nothing waits for it: `refused` says so, and `withdraw` answers the calls that no
thread has taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue


class ThreadPool:
    """Calls functions in at most `most` threads. `submit` and `close` belong to one thread, the loop's."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: deque[Callable[[], None]] = deque()
        self._bell: SimpleQueue[bool] = SimpleQueue()  # each word on it is for one idle thread; False: end
        self._guard = threading.Lock()  # of what follows
        self.refused = False  # the system gave no thread; calls may wait that nobody comes for
        self._coming = False  # a thread is on its way to the calls, woken or new
        self._idle = 0
        self._count = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call`, which must not raise, as soon as a thread is free."""
        self._calls.append(call)
        if not self._coming:
            self._wake()

    def close(self) -> None:
        """Let idle threads go now and busy ones when their call ends. Waits for none."""
        for _ in range(self._count):
            self._bell.put(False)

    def withdraw(self) -> list[Callable[[], None]]:
        """Take out the calls that no thread has taken: after a refusal they might wait for long."""
        self.refused = False
        withdrawn: list[Callable[[], None]] = []
        while True:
            try:
                withdrawn.append(self._calls.popleft())
            except IndexError:
                return withdrawn

    def _wake(self) -> None:
        """Send one more thread to the calls, unless one is coming or all are busy: those look before they rest."""
        with self._guard:
            if self._coming:
                return
            if self._idle:
                self._idle -= 1
                self._coming = True
                self._bell.put(True)
            elif self._count < self._most:
                self._coming = True
                try:
                    threading.Thread(target=self._serve, name=f"{self._name}-{self._count + 1}", daemon=True).start()
                except RuntimeError:  # no more threads, for now
                    self._coming, self.refused = False, True
                else:
                    self._count += 1

    def _serve(self) -> None:
        calls = self._calls
        awake = True
        while awake:
            self._coming = False  # before looking: who submits from now on wakes another
            while True:
                try:
                    call = calls.popleft()
                except IndexError:
                    with self._guard:
                        if calls:  # submitted between the look and now, when nobody could be woken
                            continue
                        self._idle += 1
                    break
                if calls and not self._coming:
                    self._wake()
                call()
                del call  # hold nothing of the last attempt while idle
            awake = self._bell.get()
