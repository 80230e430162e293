"""Job ids made by the producer: UUID version 7 as canonical 36-character text, increasing within a process.

Called wherever a job is bound. Does no I/O except reading system randomness. We generate them ourselves on every
Python version because they must increase across the threads of a process and restart after a fork, which the standard
library's `uuid7` (3.14) does not guarantee.
"""

from __future__ import annotations

import os
import threading
import time

_COUNTER_BITS = 42  # below the millisecond: increases within it, so ids of one process sort in creation order
_COUNTER_LIMIT = 1 << _COUNTER_BITS
_COUNTER_SEED_LIMIT = 1 << (_COUNTER_BITS - 1)  # seeded in the lower half: leaves room for 2**41 ids per millisecond
_TAIL_DIGITS = 8  # random, in every id
_TAILS_AT_ONCE = 256  # reading system randomness costs more than the rest of making an id


class _Source:
    """The last millisecond and counter used, plus unused random digits; guarded for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._guard = threading.Lock()
        self._millisecond = 0
        self._counter = 0
        self._digits = ""
        self._used = 0

    def take(self) -> str:
        millisecond = time.time_ns() // 1_000_000
        with self._guard:
            if millisecond > self._millisecond:
                self._begin(millisecond)
            else:  # the same millisecond, or the wall clock went back: continue counting
                self._counter += 1
                if self._counter >= _COUNTER_LIMIT:
                    self._begin(self._millisecond + 1)
            used = self._used
            if used == len(self._digits):
                self._digits, used = os.urandom(_TAILS_AT_ONCE * _TAIL_DIGITS // 2).hex(), 0
            self._used = used + _TAIL_DIGITS
            opening, counter, tail = self._opening, self._counter, self._digits[used : self._used]
        low = counter & 0x3FFFFFFF
        return f"{opening}{counter >> 30:03x}-{0x8000 | low >> 16:04x}-{low & 0xFFFF:04x}{tail}"

    def _begin(self, millisecond: int) -> None:
        self._millisecond = millisecond
        self._counter = int.from_bytes(os.urandom(6), "big") % _COUNTER_SEED_LIMIT
        text = f"{millisecond & 0xFFFFFFFFFFFF:012x}"
        self._opening = f"{text[:8]}-{text[8:]}-7"  # up to the version digit: the same for all ids of a millisecond


_source = _Source()
if hasattr(os, "register_at_fork"):
    # A child must not continue its parent's counter; the lock may have been held by a thread that no longer exists.
    os.register_at_fork(after_in_child=_source.forget)


def new_id() -> str:
    """A new id: sorts by creation time, unique across processes and machines."""
    return _source.take()
