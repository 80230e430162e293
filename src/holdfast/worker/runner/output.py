"""Captures what handlers print and keeps it in their jobs' logs, up to a limit, so that a flood does no harm.

Used with runner processes only; the embedded worker does not touch the program's own output. In a shared runner, each
line goes to the log of the attempt that printed it and on to the process's own output. Output of C libraries and child
processes cannot be attributed there and is not kept. A dedicated runner's output is a pipe that the keeper reads, so
there everything belongs to the job, including what its child processes print.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable

from ...context import CURRENT, Context

OUTPUT_CHARS_MAX = 256 * 1024  # per attempt
ATTEMPTS_MAX = 100_000
READ_BYTES_MAX = 1 << 16
ASIDE_BYTES_MAX = 1 << 16
STDERR = 2
LEFT_OUT = "… more was printed than is kept: the rest of this attempt's output is left out …"


class Lines:
    """Splits one attempt's output into lines, up to OUTPUT_CHARS_MAX."""

    __slots__ = ("_left", "_partial", "_put")

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put, self._left, self._partial = put, OUTPUT_CHARS_MAX, ""

    def write(self, text: str) -> bool:
        """Add text; False if the limit had already been reached."""
        if self._left <= 0:
            return False
        self._left -= len(text)
        if self._left <= 0:
            text = text[: self._left or None]
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            if line:
                self._put(line)
        if self._left <= 0:
            self.end()
            self._put(LEFT_OUT)
        return True

    def end(self) -> None:
        """Emit the unfinished last line."""
        if self._partial:
            self._put(self._partial)
            self._partial = ""


class Captured(io.TextIOBase):
    """Replaces sys.stdout or sys.stderr."""

    def __init__(self, real: io.TextIOWrapper) -> None:
        self.real = real
        self.lines: dict[Context, Lines] = {}  # of attempts that have printed

    def write(self, text: str, /) -> int:
        context = CURRENT.get()
        if context is None:
            return self.real.write(text)
        lines = self.lines.get(context)
        if lines is None:
            lines = self.lines[context] = Lines(context.log)
            if len(self.lines) > ATTEMPTS_MAX:  # left by ended attempts that still print, from a thread, say
                del self.lines[next(iter(self.lines))]
        if lines.write(text):
            self.real.write(text)
        return len(text)

    def flush(self) -> None:
        if not self.real.closed:  # finalizing a stream flushes it again
            self.real.flush()

    def end(self, context: Context) -> None:
        """The attempt has ended: emit its unfinished last line."""
        lines = self.lines.pop(context, None)
        if lines is not None:
            lines.end()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    @property
    def buffer(self) -> object:
        return self.real.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.real.encoding


def capture_output() -> Callable[[Context], None]:
    """Start capturing handlers' output for their jobs. Return the function to call when an attempt has ended."""
    captured = []
    for name in ("stdout", "stderr"):
        real = getattr(sys, name)
        if isinstance(real, io.TextIOWrapper):
            stands = Captured(real)
            setattr(sys, name, stands)
            captured.append(stands)

    def ended(context: Context) -> None:
        for stream in captured:
            if stream.lines:  # rare: most attempts print nothing
                stream.end(context)

    return ended


class OutputPipe:
    """The keeper's end of a dedicated runner's output pipe.

    Always drained, even if the output is discarded, so a flood neither fills memory nor blocks the job. Output without
    a job (during imports, say) goes to the keeper's stderr, up to a limit.
    """

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
