"""Captures what handlers print and keeps it in their jobs' logs, up to a limit, so that a flood does no harm.

Used in runner processes only; the embedded worker does not touch the program's own output. In a shared runner, each
line goes to the log of the attempt that printed it and on to the process's own output. Output of C libraries and child
processes cannot be attributed there and is not kept.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from ...context import CURRENT, Context

OUTPUT_CHARS_MAX = 256 * 1024  # per attempt
ATTEMPTS_MAX = 100_000
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
        self._real = real
        self.lines: dict[Context, Lines] = {}  # of attempts that have printed

    def write(self, text: str, /) -> int:
        context = CURRENT.get()
        if context is None:
            return self._real.write(text)
        lines = self.lines.get(context)
        if lines is None:
            lines = self.lines[context] = Lines(context.log)
            if len(self.lines) > ATTEMPTS_MAX:  # left by ended attempts that still print, from a thread, say
                del self.lines[next(iter(self.lines))]
        if lines.write(text):
            self._real.write(text)
        return len(text)

    def flush(self) -> None:
        if not self._real.closed:  # finalizing a stream flushes it again
            self._real.flush()

    def end(self, context: Context) -> None:
        """The attempt has ended: emit its unfinished last line."""
        lines = self.lines.pop(context, None)
        if lines is not None:
            lines.end()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._real.isatty()

    def fileno(self) -> int:
        return self._real.fileno()

    @property
    def buffer(self) -> object:
        return self._real.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._real.encoding


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
