"""Forked children of a runner: they must never write to the runner's socket, nor run the runner's jobs.

Armed by runner_endpoint.py; the runner checks it whenever a handler has returned. A handler may fork; its child is
expected to exec or exit. A child that returns or awaits instead would continue as a second runner with the same socket
and the same queued jobs: it exits here at once, and its parent continues.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

EXIT_CODE = 72

_in_child = False


def arm(sock: int, loop: asyncio.AbstractEventLoop) -> None:
    """From now on, cut forked children of this process off from the runner's socket and loop."""
    os.register_at_fork(after_in_child=lambda: _forsake(sock, loop))


def leave_if_child() -> None:
    """Exit if this process is a runner's forked child."""
    if _in_child:
        os._exit(EXIT_CODE)


def _forsake(sock: int, loop: Any) -> None:
    """In the child: replace the socket by /dev/null, and make the loop's next step exit."""
    global _in_child
    _in_child = True
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, sock, inheritable=False)  # leaves the epoll set, which is shared with the parent, untouched
    os.close(nothing)
    ready = getattr(loop, "_ready", None)  # exit ahead of queued callbacks: those are the parent's
    if ready is not None:
        ready.appendleft(asyncio.Handle(os._exit, (EXIT_CODE,), loop))
