"""Wake-ups on SQLite: notices that the file changed, by this process (a nudge after commit) or another (data_version).

Called by the backend's wait_for_work. Where writes to the log can be heard it asks soon after one, else again and
again. A hint only: who is woken asks the store. Never writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from ...clock import Clock
from . import read_rules
from .columns import SQL
from .connection import connect, errors_mapped
from .fork import Post

POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.005
POLL_GROWTH = 1.002  # from the shortest to the longest pause in about two seconds without a change
HEARING_SECONDS_MAX = 0.1  # where every write is heard; a change that was not, and this watch polls for good
HEARING_GROWTH = 1.3  # a commit is heard while it is on its way to the disk: soon seen, or not so soon
CLAIM_SECONDS = 0.002  # a claim was a look, too: after one of its own a worker need not look again at once

# Every watch of this process, by file: the app's backend and the worker's are two, and tell each other at once.
_watches: dict[str, weakref.WeakSet[Wakeups]] = {}


def nudge(path: str, *, claimed: Wakeups | None = None) -> None:
    """This process committed something to the file, by a claim of this watch's worker or otherwise. From any thread."""
    for watch in list(_watches.get(path, ())):
        if watch is not claimed:
            watch.nudge()


def forget_inherited() -> None:
    """In a forked child: the parent's watches wait on loops that do not run here, behind guards nobody will open."""
    _watches.clear()


class Wakeups:
    """One connection that looks, and the loops that wait."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._post = Post(rank=1)  # after the writers: they wake waiters while at work
        self._guard = self._post.at_work
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._waits: set[Wait] = set()
        self._ear: Inotify | None = None
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
            at_hand, next_due = read_rules.work_at_hand(cursor, queues, self._clock.wall())
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
        self._ear: Inotify | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = POLL_SECONDS_MIN
        self._told = self._closed = False

    def listen(self, ear: Inotify) -> bool:
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


# ----------------------------------------------------------------------------------------------------------------------
# Hears that somebody writes to the store's log, through the kernel's file watch (Linux; elsewhere it hears nothing).
#
# Used by the watch while it waits, and by whoever committed work to tell the others. Every commit is written to the
# log, so a watch that hears need not ask so often. A hint only: a write is heard before it can be seen, and some mounts
# tell nothing at all; the watch finds that out by asking, and then listens no more. Never reads or writes the log.


_IN_MODIFY, _IN_CLOSE_NOWRITE = 0x002, 0x010
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name: a file has none
_BYTES_MAX = 4096


def call_out(path: str) -> None:
    """Tell other processes at once that work was committed.

    Opening the log and closing it again is seen by who listens. It changes nothing: SQLite has no locks on this file.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC))


class Inotify:
    """A file watch on the log. One wait has it at a time; it is kept over many: the kernel takes long to end one.

    `written`: somebody writes; `committed`: somebody called out. Both are called on the loop of the wait.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = False
        self._written = self._committed = _nothing

    @property
    def taken(self) -> bool:
        return self._loop is not None

    def attend(self, written: Callable[[], None], committed: Callable[[], None]) -> None:
        """Tell this wait from now on."""
        self._read()  # of no use any more
        self._loop, self._written, self._committed = asyncio.get_running_loop(), written, committed
        self._loop.add_reader(self._handle, self.hear)

    def leave(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._handle)
            self._loop = None
            if self._ends:
                self.close()

    def rest(self) -> None:
        """Keep the wait's place, and tell it nothing."""
        if self._loop is not None:
            self._loop.remove_reader(self._handle)

    def go_on(self) -> None:
        """Tell it again, but nothing of what was heard meanwhile."""
        if self._loop is not None:
            self._read()
            self._loop.add_reader(self._handle, self.hear)

    def hear(self) -> None:
        """Take in what was heard so far. A write is heard before its commit can be seen."""
        masks = self._read()
        if masks & _IN_CLOSE_NOWRITE:
            self._committed()
        elif masks:
            self._written()

    def _read(self) -> int:
        masks = 0
        with contextlib.suppress(BlockingIOError):
            for _, mask, _, _ in _EVENT.iter_unpack(os.read(self._handle, _BYTES_MAX)):
                masks |= mask
        return masks

    def close(self) -> None:
        """Now, or when the wait that has it ends."""
        self._ends = True
        if self._loop is None:
            os.close(self._handle)


def open_ear(path: str) -> Inotify | None:
    """An ear at the log of this store, which somebody must have open; None where there is none to be had."""
    libc = _libc()
    handle = -1 if libc is None else libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if libc is None or handle < 0:
        return None
    if libc.inotify_add_watch(handle, os.fsencode(path + "-wal"), _IN_MODIFY | _IN_CLOSE_NOWRITE) < 0:
        os.close(handle)
        return None
    return Inotify(handle)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if hasattr(libc, "inotify_init1") else None


def _nothing() -> None:
    """Nobody waits."""
