"""Wake-ups on SQLite: detects that the file changed, by this process (a nudge after commit) or another (data_version).

Called by the backend's wait_for_work; the backend also calls `nudge` and `call_out` after commits. If inotify reports
writes to the WAL, it checks shortly after each one, else it polls. Only a hint: a woken caller queries the store. Never
writes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import Clock, until_tick
from ...lazy import import_lazily
from .codec import SQL
from .connection import connect, errors_mapped
from .fork import Post

if TYPE_CHECKING:
    import asyncio
    import ctypes
    import sqlite3

    from . import claim
else:
    import_lazily(globals(), "asyncio", "ctypes", ".claim")

T = TypeVar("T")

POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.005
POLL_GROWTH = 1.002  # from the shortest to the longest pause in about two seconds without a change
HEARING_SECONDS_MAX = 0.5  # with inotify; after one change it did not report, these wake-ups poll for good
LAST_SECONDS = 0.1  # a rare check is left out this long before the wait ends
EVENT_SECONDS_MAX = 10.0  # from the event of a write until its commit is visible, on the slowest disk
HEARING_GROWTH = 2.0  # a write is reported before the commit is on disk: noticed within twice the time that takes
CLAIM_SECONDS = 0.002  # a claim is a check, too: after its own claim a worker need not check again at once

# All Wakeups of this process, by file: the app's backend and the worker's are two, and nudge each other at once.
_watches: dict[str, weakref.WeakSet[Wakeups]] = {}


def nudge(path: str, *, claimed: Wakeups | None = None) -> None:
    """This process committed to the file. `claimed`: skip this one, its worker has just claimed. From any thread."""
    for watch in list(_watches.get(path, ())):
        if watch is not claimed:
            watch.nudge()


def forget_inherited() -> None:
    """In a forked child: the parent's wake-ups wait on loops that do not run here, with locks nobody will release."""
    _watches.clear()


class Wakeups:
    """One connection that checks the file, and the event loops that wait."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._post = Post(rank=1)  # after the writers: they wake waiters while at work
        self._guard = self._post.at_work
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._waits: set[Wait] = set()
        self._ear: Inotify | None = None
        self._hears = True  # until a missed change proves otherwise
        self._nothing_seen: tuple[int, Sequence[str], float | None] | None = None  # version, queues, next due
        _watches.setdefault(path, weakref.WeakSet()).add(self)

    def nudge(self) -> None:
        """Wake all waiters, from any thread."""
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

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Cursor]:
        with self._guard, errors_mapped(self._path):
            if self._post.connection is None:
                self._post.connection, self._nothing_seen = connect(self._path), None  # versions count per connection
            yield self._post.connection.cursor()

    def _look(self, queues: Sequence[str]) -> tuple[int, bool, float | None]:
        """(version of the file, work at hand, when the next scheduled job is due).

        In a file that has not changed since the last look, nothing is at hand before something is due.
        """
        with self._reading() as cursor:
            version, now = cursor.execute(SQL["read.data_version"]).fetchone()[0], self._clock.wall()
            if (seen := self._nothing_seen) is not None and seen[:2] == (version, tuple(queues)):
                next_due = seen[2]
                if next_due is None or now < next_due:
                    return version, False, next_due
            at_hand, next_due = claim.work_at_hand(cursor, queues, now)
            self._nothing_seen = None if at_hand else (version, tuple(queues), next_due)
            return version, at_hand, next_due

    def snapshot(self, read: Callable[[sqlite3.Cursor], T]) -> T:
        """Run a short read on one snapshot of the store, on the calling thread."""
        with self._reading() as cursor:
            cursor.execute("BEGIN")
            try:
                return read(cursor)
            finally:
                cursor.execute("ROLLBACK")

    def _version(self) -> int:
        with self._reading() as cursor:
            return int(cursor.execute(SQL["read.data_version"]).fetchone()[0])

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        event = asyncio.Event()
        with self._guard:
            self._waiting[event] = asyncio.get_running_loop()
        wait = Wait(event)
        self._waits.add(wait)
        try:
            if self._ear is not None:
                self._listens(wait)  # before the check, so that no change falls between the two
            version, at_hand, next_due = self._look(queues)
            if not at_hand and not wait.listening and self._listens(wait):
                version, at_hand, next_due = self._look(queues)  # also sees changes from before it was listening
            if at_hand:
                return True
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
            return False
        finally:
            wait.close()
            self._waits.discard(wait)
            with self._guard:
                self._waiting.pop(event, None)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Suspend this worker's wait during its own claim: whatever it would notice is the claim's own write."""
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
        """Whether this wait gets inotify events from now on; only one wait at a time does, the others poll."""
        with self._guard:
            if self._hears and self._ear is None:
                self._ear = open_ear(self._path)
                self._hears = self._ear is not None
            return self._hears and self._ear is not None and wait.listen(self._ear)


class Wait:
    """One wait for work: how long it pauses between two checks, and whether it was notified to check."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event, self.loop = event, asyncio.get_running_loop()
        self._ear: Inotify | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = POLL_SECONDS_MIN
        self._growth = POLL_GROWTH  # growth of the pause between two checks
        self._nudged = self._closed = False

    def listen(self, ear: Inotify) -> bool:
        if ear.taken:
            return False
        try:
            self._nudged = ear.attend(self._written, self._committed)
        except NotImplementedError:  # this kind of loop cannot watch a descriptor
            ear.leave()
            return False
        self._ear, self._growth = ear, HEARING_GROWTH
        if not (self._nudged or ear.is_new):  # whatever becomes visible from now on is reported from now on
            self._seconds = HEARING_SECONDS_MAX
        ear.is_new = False
        return True

    @property
    def listening(self) -> bool:
        return self._ear is not None

    async def pause(self, seconds_max: float) -> None:
        """Pause until a commit is reported, or for an interval that grows each time."""
        seconds = until_tick(min(self._seconds, seconds_max))
        if self._seconds == HEARING_SECONDS_MAX and seconds_max - seconds < LAST_SECONDS:
            seconds = seconds_max  # the caller asks the store then anyway
        self._timer = self.loop.call_later(seconds, self._time_is_up)
        most = POLL_SECONDS_MAX if self._ear is None else HEARING_SECONDS_MAX
        self._seconds = min(self._seconds * self._growth, most)
        await self._event.wait()
        self._event.clear()
        self._nudged = self._nudged or self._timer is not None  # a nudge
        self._stop_timer()

    def rest(self) -> None:
        """Ignore events and stop checking until go_on."""
        self._stop_timer()
        if self._ear is not None:
            self._ear.rest()

    def go_on(self) -> None:
        """Check after a short delay: others may have committed something before or after the claim."""
        if self._closed:
            return
        self._nudged, self._seconds = True, POLL_SECONDS_MIN
        if self._ear is not None:
            self._ear.go_on()
            self._seconds = CLAIM_SECONDS
        self._stop_timer()
        self._timer = self.loop.call_later(CLAIM_SECONDS, self._time_is_up)

    def begin_again(self) -> None:
        """A change was seen: the next one may be near. If that is reported, checks become frequent then; if its report
        was read with the first one's, they have been since."""
        self._nudged = False
        if self._ear is None:
            self._seconds = POLL_SECONDS_MIN

    def was_told(self) -> bool:
        """Whether a change was reported; reads pending events first, as a visible change has its event already.

        Two commits in a row: the second's event may have been read together with the first's, before the second was
        visible. So any event of the last seconds may be this change's.
        """
        if self._ear is not None and not self._nudged:
            self._ear.hear()
        return self._nudged or (self._ear is not None and time.monotonic() - self._ear.heard_at < EVENT_SECONDS_MAX)

    def _time_is_up(self) -> None:
        self._timer = None
        self._event.set()

    def _committed(self) -> None:
        self._nudged = True
        self._event.set()

    def _written(self) -> None:
        """The write is visible only once it is on disk, which takes a moment."""
        self._nudged, self._seconds = True, POLL_SECONDS_MIN
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
            self._ear, self._growth = None, POLL_GROWTH


# ----------------------------------------------------------------------------------------------------------------------
# inotify on the store's WAL (Linux only). Every commit writes to the WAL, so a wait with inotify polls rarely. Only a
# hint: a write is reported before it is visible, and some mounts report nothing; the wait finds that out by polling and
# then stops listening. Never reads or writes the WAL.


_IN_MODIFY, _IN_CLOSE_NOWRITE, _IN_DELETE_SELF = 0x002, 0x010, 0x400
_REPORTED = _IN_MODIFY | _IN_CLOSE_NOWRITE
_SILENT = _IN_DELETE_SELF  # a watch must ask for something; this does not come while a connection has the file open
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name: a watched file has no name
_BYTES_MAX = 4096


def call_out(path: str) -> None:
    """Notify other processes at once that work was committed.

    Opening and closing the WAL is an event for their inotify. It changes nothing: SQLite holds no locks on this file.
    """
    try:
        os.close(os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return


class Inotify:
    """An inotify watch on the WAL. One wait uses it at a time; it is reused, because the kernel is slow to remove one.

    `written`: somebody is writing; `committed`: somebody called `call_out`. Both are called on the wait's loop.
    """

    def __init__(self, handle: int, ask: Callable[[int], object]) -> None:
        self._handle, self._ask = handle, ask
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resting = self._ends = False
        self.is_new = True  # what was written before this watch began was not reported
        self.heard_at = float("-inf")  # when the last event was read, by time.monotonic()
        self._written = self._committed = _nothing

    @property
    def taken(self) -> bool:
        return self._loop is not None

    def attend(self, written: Callable[[], None], committed: Callable[[], None]) -> bool:
        """Report events to this wait from now on. Return whether there were some since the last wait: then a commit may
        be about to become visible."""
        pending = self._read() != 0
        self._loop, self._written, self._committed = asyncio.get_running_loop(), written, committed
        self._loop.add_reader(self._handle, self.hear)
        return pending

    def leave(self) -> None:
        if self._loop is not None:
            if self._resting:
                self.go_on()
                self.is_new = True
            self._loop.remove_reader(self._handle)
            self._loop = None
            if self._ends:
                self.close()

    def rest(self) -> None:
        """Stay assigned to the wait, but report nothing. The kernel is asked for no events meanwhile: they cost our own
        claim 0.9 µs for each page that it writes. What is written until go_on counts as heard."""
        if self._loop is not None:
            self._resting, self.heard_at = True, time.monotonic()
            self._ask(_SILENT)

    def go_on(self) -> None:
        """Report again."""
        if self._loop is not None:
            self._read()  # discards what was reported just before
            self._resting, self.heard_at = False, time.monotonic()  # a write of the meantime may become visible later
            self._ask(_REPORTED)

    def hear(self) -> None:
        """Process pending events. A write is reported before its commit is visible."""
        masks = self._read()
        if self._resting:
            return
        if masks & _IN_CLOSE_NOWRITE:
            self._committed()
        elif masks:
            self._written()

    def _read(self) -> int:
        masks = 0
        with contextlib.suppress(BlockingIOError):
            for _, mask, _, _ in _EVENT.iter_unpack(os.read(self._handle, _BYTES_MAX)):
                masks |= mask
        if masks:
            self.heard_at = time.monotonic()
        return masks

    def close(self) -> None:
        """Close now, or when the wait that uses it ends."""
        self._ends = True
        if self._loop is None:
            os.close(self._handle)


def open_ear(path: str) -> Inotify | None:
    """An inotify watch on this store's WAL, which some connection must have open; None if not available."""
    libc = _libc()
    handle = -1 if libc is None else libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if libc is None or handle < 0:
        return None
    ask = partial(libc.inotify_add_watch, handle, os.fsencode(path + "-wal"))  # also changes what an old watch reports
    if ask(_REPORTED) < 0:
        os.close(handle)
        return None
    return Inotify(handle, ask)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if hasattr(libc, "inotify_init1") else None


def _nothing() -> None:
    """The callback while nobody waits."""
