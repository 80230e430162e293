"""Begin flags in memory shared by keeper and runner: which job has begun, when, in which thread; which was taken back.

Written by the runner just before it calls a handler, read by the keeper when that runner is blocked or dead: a frame
could be stuck behind the very handler it reports. One numbered flag per running job; the keeper assigns the numbers.

Begin and take-back may race. This is a Dekker-style store-then-load: the runner writes its begin, then reads whether
the job was taken; the keeper writes that it takes the job, then reads whether it began. Whichever reads second sees
the other's write, so at most one of them continues; if both see it, neither does, and the runner releases the job.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import threading

_FLAG = struct.Struct("<dQQ")  # begun (steady seconds; 0: not yet), thread, taken back
_BEGUN = struct.Struct("<dQ")
_TAKEN = 16  # offset of the taken-back flag
_SIZE = _FLAG.size


def make_file(number: int) -> int:
    """An anonymous file of the right size. On Linux, the size is sealed: truncating it would kill readers (SIGBUS)."""
    if sys.platform == "linux":
        fd = os.memfd_create("holdfast-begin-flags", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, number * _SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    import tempfile  # costs a runner milliseconds, and Linux does not need it

    fd, path = tempfile.mkstemp(prefix="holdfast-begin-flags-")
    os.unlink(path)
    os.ftruncate(fd, number * _SIZE)
    return fd


class BeginFlags:
    """The shared memory, as used by either side."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._fence = threading.Lock()

    # ------------------------------------------------------------------ called by the runner

    def begin(self, flag: int, at: float, thread: int) -> bool:
        """Record that a job begins; False if the keeper has taken it back."""
        offset = flag * _SIZE
        _BEGUN.pack_into(self._memory, offset, at, thread)
        with self._fence:  # acts as a memory barrier: the write above is visible before the read below
            return self._memory[offset + _TAKEN] == 0

    # ------------------------------------------------------------------ called by the keeper

    def clear(self, flag: int) -> None:
        _FLAG.pack_into(self._memory, flag * _SIZE, 0.0, 0, 0)

    def begun(self, flag: int) -> float:
        """When the job began, on the steady clock; 0.0 if it has not."""
        at: float = _FLAG.unpack_from(self._memory, flag * _SIZE)[0]
        return at

    def thread(self, flag: int) -> int:
        """The thread the job began in."""
        thread: int = _FLAG.unpack_from(self._memory, flag * _SIZE)[1]
        return thread

    def take_back(self, flag: int) -> bool:
        """Take a job back; False if it may have begun."""
        self._memory[flag * _SIZE + _TAKEN] = 1
        with self._fence:
            return self.begun(flag) == 0.0

    def close(self) -> None:
        self._memory.close()
