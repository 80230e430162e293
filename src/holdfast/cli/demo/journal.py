"""The journal: what the demo's handlers really did, independent of what the store reports.

Written by the scene's handlers (several processes at once) and by the stage when it kills; read by the verdict. A file
of lines, each appended by one write, on one machine's monotonic clock; lines are never changed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

HAND_VARIABLE = "HOLDFAST_DEMO_HAND"  # set for a worker and inherited by its runners


class Entry(Struct, frozen=True, kw_only=True):
    """One line."""

    event: str  # start, end, killed
    at: float
    pid: int
    job: str = ""
    ship: str = ""
    step: str = ""
    fence: int = 0
    attempt: int = 0
    hand: str = ""  # the worker whose runner wrote it


class Journal:
    """An append-only file of entries."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, event: str, *, pid: int | None = None, **fields: Any) -> None:
        entry = {"event": event, "at": time.monotonic(), "pid": pid or os.getpid(), **fields}
        line = json.dumps({"hand": os.environ.get(HAND_VARIABLE, ""), **entry}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self) -> list[Entry]:
        """Every entry so far, by time."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        return sorted((Entry(**json.loads(line)) for line in lines), key=lambda entry: entry.at)
