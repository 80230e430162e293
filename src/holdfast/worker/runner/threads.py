"""Threads of a runner, for sync handlers: started on demand, reused, woken one at a time.

Used by attempt.py. Knows nothing about jobs: a call is a function without arguments, which must not raise.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue


class ThreadPool:
    """Daemon threads for sync handlers, at most `most`, started on demand and reused.

    `submit` and `close` are called only on the loop's thread. Unlike the standard pool's, these threads never delay
    process exit: a handler that does not stop must not keep the whole program alive, and nothing here pretends that a
    thread could be killed.

    Waking a thread costs more than a short handler. So one is woken at a time, and each that takes a call wakes another
    if calls are left: blocking handlers quickly get a thread each, short ones finish before the next thread is up.

    The system may refuse a thread. Then nothing waits for it: `refused` is set, and `withdraw` returns the calls that
    no thread has taken.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: deque[Callable[[], object]] = deque()
        self._bell: SimpleQueue[bool] = SimpleQueue()  # each item wakes one idle thread; False: end
        self._guard = threading.Lock()  # protects the fields below
        self.refused = False  # the system refused a thread; calls may be waiting without one
        self._coming = False  # a woken or new thread is about to take calls
        self._idle = 0
        self._count = 0

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call`, which must not raise, as soon as a thread is free."""
        self._calls.append(call)
        if not self._coming:
            self._wake()

    @property
    def waiting(self) -> int:
        """How many calls no thread has taken yet."""
        return len(self._calls)

    def close(self) -> None:
        """End idle threads now and busy ones after their call. Does not wait."""
        for _ in range(self._count):
            self._bell.put(False)

    def withdraw(self) -> list[Callable[[], object]]:
        """Take out the calls that no thread has taken: after a refusal they might wait long."""
        self.refused = False
        withdrawn: list[Callable[[], object]] = []
        while True:
            try:
                withdrawn.append(self._calls.popleft())
            except IndexError:
                return withdrawn

    def _wake(self) -> None:
        """Wake or start a thread, unless one is coming or all are busy: those check again before they go idle."""
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
            self._coming = False  # reset before taking calls: a later submit wakes another thread
            while True:
                try:
                    call = calls.popleft()
                except IndexError:
                    with self._guard:
                        if calls:  # submitted since popleft, while no thread could be woken
                            continue
                        self._idle += 1
                    break
                if calls and not self._coming:
                    self._wake()
                call()
                del call  # keep no reference to the last attempt while idle
            awake = self._bell.get()
