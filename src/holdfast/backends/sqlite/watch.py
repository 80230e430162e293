"""Wake-ups on SQLite: notices that the file changed, by this process (a nudge after commit) or another (data_version).

Called by the backend's wait_for_work. Where writes to the log can be heard it asks soon after one, else again and
again. A hint only: who is woken asks the store. Never writes.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...clock import Clock
from . import showing
from .connection import connect, errors_mapped
from .forking import Post
from .hearing import Ear, open_ear
from .stored import SQL

POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.005
POLL_GROWTH = 1.002  # from the shortest to the longest pause in about two seconds without a change
HEARING_SECONDS_MAX = 0.1  # where every write is heard; a change that was not, and this watch polls for good
HEARING_GROWTH = 1.3  # a commit is heard while it is on its way to the disk: soon seen, or not so soon
CLAIM_SECONDS = 0.002  # a claim was a look, too: after one of its own a worker need not look again at once

# Every watch of this process, by file: the app's backend and the worker's are two, and tell each other at once.
_watches: dict[str, weakref.WeakSet[Watch]] = {}


def nudge(path: str, *, claimed: Watch | None = None) -> None:
    """This process committed something to the file, by a claim of this watch's worker or otherwise. From any thread."""
    for watch in list(_watches.get(path, ())):
        if watch is not claimed:
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
        self._waits: set[Wait] = set()
        self._ear: Ear | None = None
        self._hears = True  # until it is found out that it does not
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
            ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()

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
        wait = Wait(event)
        self._waits.add(wait)
        try:
            version, at_hand, next_due = self._look(queues)
            if not at_hand and self._listens(wait):
                version, at_hand, next_due = self._look(queues)  # what came before it was listening
            while not at_hand and (left := deadline - time.monotonic()) > 0:
                if next_due is not None:
                    left = min(left, max(POLL_SECONDS_MIN, next_due - self._clock.wall()))
                await wait.pause(left)
                due = next_due is not None and self._clock.wall() >= next_due
                if due or self._version() != version:
                    if wait.listening and not due and not wait.was_told():
                        self._hears = False
                        wait.listen_no_more()
                    wait.begin_again()
                    version, at_hand, next_due = self._look(queues)
        finally:
            wait.close()
            self._waits.discard(wait)
            with self._guard:
                self._waiting.pop(event, None)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """While a claim of this worker is under way its wait rests: what it would hear and see is the claim's doing."""
        loop = asyncio.get_running_loop()
        waits = [wait for wait in list(self._waits) if wait.loop is loop]
        for wait in waits:
            wait.rest()
        try:
            yield
        finally:
            for wait in waits:
                wait.go_on()

    def _listens(self, wait: Wait) -> bool:
        """Whether this wait hears of writes from now on; of several at once, the others ask."""
        with self._guard:
            if self._hears and self._ear is None:
                self._ear = open_ear(self._path)
                self._hears = self._ear is not None
            return self._hears and self._ear is not None and wait.listen(self._ear)


class Wait:
    """One wait for work: how long it pauses between two questions, and whether it was told to ask."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event, self.loop = event, asyncio.get_running_loop()
        self._ear: Ear | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = POLL_SECONDS_MIN
        self._told = self._closed = False

    def listen(self, ear: Ear) -> bool:
        if ear.taken:
            return False
        try:
            ear.attend(self._written, self._committed)
        except NotImplementedError:  # this kind of loop cannot wait for a file
            ear.leave()
            return False
        self._ear = ear
        return True

    @property
    def listening(self) -> bool:
        return self._ear is not None

    async def pause(self, seconds_max: float) -> None:
        """Until it is told that something was committed, or for a while that grows each time."""
        self._timer = self.loop.call_later(min(self._seconds, seconds_max), self._time_is_up)
        if self._ear is None:
            self._seconds = min(self._seconds * POLL_GROWTH, POLL_SECONDS_MAX)
        else:
            self._seconds = min(self._seconds * HEARING_GROWTH, HEARING_SECONDS_MAX)
        await self._event.wait()
        self._event.clear()
        self._told = self._told or self._timer is not None  # a nudge
        self._stop_timer()

    def rest(self) -> None:
        """Neither hear nor ask until told to go on."""
        self._stop_timer()
        if self._ear is not None:
            self._ear.rest()

    def go_on(self) -> None:
        """Ask in a little while: others may have committed something, before the claim or after it."""
        if self._closed:
            return
        if self._ear is not None:
            self._ear.go_on()
        self._told, self._seconds = True, POLL_SECONDS_MIN
        self._stop_timer()
        self._timer = self.loop.call_later(CLAIM_SECONDS, self._time_is_up)

    def begin_again(self) -> None:
        self._seconds, self._told = POLL_SECONDS_MIN, False

    def was_told(self) -> bool:
        """Whether it heard of a change by itself; a change it can see now, it has heard."""
        if self._ear is not None and not self._told:
            self._ear.hear()
        return self._told

    def _time_is_up(self) -> None:
        self._timer = None
        self._event.set()

    def _committed(self) -> None:
        self._told = True
        self._event.set()

    def _written(self) -> None:
        """It can be seen when it is on the disk, which takes a moment."""
        self._told, self._seconds = True, POLL_SECONDS_MIN
        if self._timer is not None and self._timer.when() > self.loop.time() + POLL_SECONDS_MIN:
            self._stop_timer()
            self._timer = self.loop.call_later(POLL_SECONDS_MIN, self._time_is_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._closed = True
        self._stop_timer()
        self.listen_no_more()

    def listen_no_more(self) -> None:
        if self._ear is not None:
            self._ear.leave()
            self._ear = None
