"""Hears that somebody writes to the store's log, through the kernel's file watch (Linux; elsewhere it hears nothing).

Used by the watch while it waits, and by whoever committed work to tell the others. Every commit is written to the log,
so a watch that hears need not ask so often. A hint only: a write is heard before it can be seen, and some mounts tell
nothing at all; the watch finds that out by asking, and then listens no more. Never reads or writes the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_IN_MODIFY, _IN_CLOSE_NOWRITE = 0x002, 0x010
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name: a file has none
_BYTES_MAX = 4096


def call_out(path: str) -> None:
    """Tell other processes at once that work was committed.

    Opening the log and closing it again is seen by who listens. It changes nothing: SQLite has no locks on this file.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC))


class Ear:
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


def open_ear(path: str) -> Ear | None:
    """An ear at the log of this store, which somebody must have open; None where there is none to be had."""
    libc = _libc()
    handle = -1 if libc is None else libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if libc is None or handle < 0:
        return None
    if libc.inotify_add_watch(handle, os.fsencode(path + "-wal"), _IN_MODIFY | _IN_CLOSE_NOWRITE) < 0:
        os.close(handle)
        return None
    return Ear(handle)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if hasattr(libc, "inotify_init1") else None


def _nothing() -> None:
    """Nobody waits."""
