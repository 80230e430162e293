"""A forked child of a runner: it must never speak on the runner's socket, nor run what the runner has to run.

Armed by the runner's program, asked by the runner whenever a handler has returned. A handler may fork; its child is
expected to become another program or to exit. One that returns, or awaits, instead would go on as a second runner with
the same socket and the same queued jobs: it ends here, at once, and its parent goes on.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

EXIT_CODE = 72

_in_child = False


def arm(sock: int, loop: asyncio.AbstractEventLoop) -> None:
    """From now on children of this process are not runners."""
    os.register_at_fork(after_in_child=lambda: _forsake(sock, loop))


def leave_if_child() -> None:
    """End this process if it is a runner's forked child."""
    if _in_child:
        os._exit(EXIT_CODE)


def _forsake(sock: int, loop: Any) -> None:
    """In the child: put nothing in the socket's place, and let the loop's next step be the last."""
    global _in_child
    _in_child = True
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, sock, inheritable=False)  # the loop's own bookkeeping, shared with the parent, is not touched
    os.close(nothing)
    ready = getattr(loop, "_ready", None)  # ahead of what is queued: those are the parent's handlers
    if ready is not None:
        ready.appendleft(asyncio.Handle(os._exit, (EXIT_CODE,), loop))
