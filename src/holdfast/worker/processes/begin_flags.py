"""Marks in memory that keeper and runner share: which job has begun, when, in which thread, and which was taken back.

Written by the runner just before it calls a handler, read by the keeper when that runner is blocked or dead: a frame
could be stuck behind the very handler it tells about. One place per job under way; the keeper gives out the places.

Begin and take-back may meet at the same instant. The runner writes its begin, then looks whether the job was taken; the
keeper writes that it takes the job, then looks whether it began. Whoever looks second sees the other, so at most one of
them goes on; where both see the other, nobody does, and the runner gives the job back itself.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import tempfile
import threading

_PLACE = struct.Struct("<dQQ")  # begun (steady seconds; 0: not yet), thread, taken back
_BEGUN = struct.Struct("<dQ")
_TAKEN = 16  # offset of the last
_SIZE = _PLACE.size


def make_file(places: int) -> int:
    """A file without a name, of the right size. Where the system can, for good: cut short it would kill who reads."""
    if sys.platform == "linux":
        fd = os.memfd_create("holdfast-marks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, places * _SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    fd, path = tempfile.mkstemp(prefix="holdfast-marks-")
    os.unlink(path)
    os.ftruncate(fd, places * _SIZE)
    return fd


class BeginFlags:
    """The shared memory, seen from either side."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._fence = threading.Lock()

    # ------------------------------------------------------------------ the runner

    def begin(self, place: int, at: float, thread: int) -> bool:
        """Mark a begin; False when the keeper has taken the job back."""
        offset = place * _SIZE
        _BEGUN.pack_into(self._memory, offset, at, thread)
        with self._fence:  # an atomic instruction: the write above is visible before the read below is made
            return self._memory[offset + _TAKEN] == 0

    # ------------------------------------------------------------------ the keeper

    def clear(self, place: int) -> None:
        _PLACE.pack_into(self._memory, place * _SIZE, 0.0, 0, 0)

    def begun(self, place: int) -> float:
        """When it began; 0.0 when it has not."""
        at: float = _PLACE.unpack_from(self._memory, place * _SIZE)[0]
        return at

    def thread(self, place: int) -> int:
        """In which thread."""
        thread: int = _PLACE.unpack_from(self._memory, place * _SIZE)[1]
        return thread

    def take_back(self, place: int) -> bool:
        """Take a job back; False when it may have begun."""
        self._memory[place * _SIZE + _TAKEN] = 1
        with self._fence:
            return self.begun(place) == 0.0

    def close(self) -> None:
        self._memory.close()
