"""Wake-ups on SQLite: notices that the file changed, by this process (a nudge after commit) or another (data_version).

Called by the backend's wait_for_work. A hint only: who is woken asks the store. Never writes.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Sequence

from ...clock import Clock
from . import showing
from .connection import connect, errors_mapped
from .forking import Post
from .stored import SQL

POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.005
POLL_GROWTH = 1.002  # from the shortest to the longest pause in about two seconds without a change

# Every watch of this process, by file: the app's backend and the worker's are two, and tell each other at once.
_watches: dict[str, weakref.WeakSet[Watch]] = {}


def nudge(path: str) -> None:
    """This process committed something to the file. Called on the writer's thread."""
    for watch in list(_watches.get(path, ())):
        watch.nudge()


def forget_inherited() -> None:
    """In a forked child: the parent's watches wait on loops that do not run here, behind guards nobody will open."""
    _watches.clear()


class Watch:
    """One connection that looks, and the loops that wait."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._post = Post(rank=1)  # after the writers: they wake waiters while at work
        self._guard = self._post.at_work
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        _watches.setdefault(path, weakref.WeakSet()).add(self)

    def nudge(self) -> None:
        """Wake who waits, from whatever thread."""
        if not self._waiting:
            return
        with self._guard:
            waiting = list(self._waiting.items())
        for event, loop in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop was closed meanwhile: nobody waits there any more

    def close(self) -> None:
        with self._guard:
            self._post.close()

    def _look(self, queues: Sequence[str]) -> tuple[int, bool, float | None]:
        """(version of the file, work at hand, when the next scheduled job is due)."""
        with self._guard, errors_mapped(self._path):
            if self._post.connection is None:
                self._post.connection = connect(self._path)
            cursor = self._post.connection.cursor()
            version = cursor.execute(SQL["read.data_version"]).fetchone()[0]
            at_hand, next_due = showing.work_at_hand(cursor, queues, self._clock.wall())
            return version, at_hand, next_due

    def _version(self) -> int:
        with self._guard, errors_mapped(self._path):
            if self._post.connection is None:
                self._post.connection = connect(self._path)
            return int(self._post.connection.execute(SQL["read.data_version"]).fetchone()[0])

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        event = asyncio.Event()
        with self._guard:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            pause = POLL_SECONDS_MIN
            version, at_hand, next_due = self._look(queues)
            while not at_hand and (left := deadline - time.monotonic()) > 0:
                await _within(event, min(pause, left))
                pause = min(pause * POLL_GROWTH, POLL_SECONDS_MAX)
                due = next_due is not None and self._clock.wall() >= next_due
                if due or self._version() != version:
                    pause = POLL_SECONDS_MIN
                    version, at_hand, next_due = self._look(queues)
        finally:
            with self._guard:
                self._waiting.pop(event, None)


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or for so many seconds."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    await event.wait()
    timer.cancel()
    event.clear()
