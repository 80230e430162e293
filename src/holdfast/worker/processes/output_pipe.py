"""Captures what a dedicated runner and its child processes print, and adds it to the job's log, up to a limit.

Used by the pool, on the keeper's loop. The pipe is always drained, even if the output is discarded, so a flood neither
fills memory nor blocks the job. Output without a job (during imports, say) goes to the keeper's stderr, up to a limit.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
from collections.abc import Callable

from ..runner.output import Lines

READ_BYTES_MAX = 1 << 16
ASIDE_BYTES_MAX = 1 << 16
STDERR = 2


class OutputPipe:
    """The read end of a runner's output pipe."""

    def __init__(self) -> None:
        self._fd, self.theirs = os.pipe()
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines: Lines | None = None
        self._aside = ASIDE_BYTES_MAX
        self._open = True
        self._loop.add_reader(self._fd, self._read)

    def begin(self, put: Callable[[str], None]) -> None:
        """A job begins: output read from now on is its own."""
        self._lines = Lines(put)

    def end(self) -> None:
        """The job has ended: read what is still in the pipe, then close its log."""
        for _ in range(64):  # bounded: a pipe holds 64 KiB, and a child that keeps printing must not hold us here
            if not self._read():
                break
        if self._lines is not None:
            self._lines.end()
            self._lines = None

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _read(self) -> bool:
        if not self._open:
            return False
        try:
            piece = os.read(self._fd, READ_BYTES_MAX)
        except BlockingIOError:
            return False
        if not piece:
            self.close()
            return False
        if self._lines is not None:
            self._lines.write(self._decoder.decode(piece))
        elif self._aside > 0:
            self._aside -= len(piece)
            with contextlib.suppress(OSError):  # the reader of our stderr is gone or does not keep up
                os.write(STDERR, piece)
        return True
