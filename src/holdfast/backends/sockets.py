"""Looking at a socket from outside an event loop: is there something to read on it, or room to write?

Called by the stores' connections. Never reads or writes.
"""

from __future__ import annotations

import math
import select


def is_ready(number: int, seconds: float = 0.0, *, writing: bool = False) -> bool:
    """Whether within `seconds` something can be read (or, if asked, written) on the socket with this descriptor.

    By poll, which unlike select takes a descriptor above 1023, as busy web servers have them.
    """
    if not hasattr(select, "poll"):  # Windows
        return any(select.select([number], [number] if writing else [], [], seconds))
    looking = select.poll()
    looking.register(number, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
    return bool(looking.poll(math.ceil(seconds * 1000)))
