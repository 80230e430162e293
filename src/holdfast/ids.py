"""Ids made by the producer: UUID version 7 as canonical 36-character text, growing within a process.

Called wherever a job is bound. Never does I/O beyond asking the system for randomness. We make them ourselves on every
Python, because they must grow across the threads of a process and begin anew after a fork, which the standard
library's `uuid7` (3.14) does not promise.
"""

from __future__ import annotations

import os
import threading
import time

_COUNTER_BITS = 42  # below the millisecond: grows within it, so that ids of one process sort as they were made
_COUNTER_LIMIT = 1 << _COUNTER_BITS
_COUNTER_SEED_LIMIT = 1 << (_COUNTER_BITS - 1)  # seeded in the lower half: room for 2**41 ids in a millisecond
_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62


class _Source:
    """The last millisecond and counter used, guarded for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._guard = threading.Lock()
        self._millisecond = 0
        self._counter = 0

    def take(self) -> int:
        random = int.from_bytes(os.urandom(10), "big")
        millisecond = time.time_ns() // 1_000_000
        with self._guard:
            if millisecond > self._millisecond:
                self._millisecond = millisecond
                self._counter = (random >> 32) % _COUNTER_SEED_LIMIT
            else:  # the same millisecond, or the wall clock went back: go on from where we were
                self._counter += 1
                if self._counter >= _COUNTER_LIMIT:
                    self._millisecond += 1
                    self._counter = (random >> 32) % _COUNTER_SEED_LIMIT
            millisecond, counter = self._millisecond, self._counter
        high, low = counter >> 30, counter & 0x3FFFFFFF
        return (
            (millisecond & 0xFFFFFFFFFFFF) << 80 | _VERSION_7 | high << 64 | _VARIANT | low << 32 | random & 0xFFFFFFFF
        )


_source = _Source()
if hasattr(os, "register_at_fork"):
    # A child would otherwise go on from its parent's counter; the guard may have been held by a thread that is gone.
    os.register_at_fork(after_in_child=_source.forget)


def new_id() -> str:
    """A new id: sortable by the time it was made, unique across processes and machines."""
    text = f"{_source.take():032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
