"""Folders for what the tests' stores and servers keep: in memory where there is room, else on disk.

No test of these stores cuts the power, and a disk's file system takes a fifth of a short case's time: a schema of
PostgreSQL is a hundred files. Who tests a failing disk, or a server that has to keep what it acknowledged, asks for
the disk. Called by the modules beside it; removes nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

ROOM_BYTES_MIN = 2 << 30  # free in memory; the servers of a whole run and their stores have about one gibibyte
_MEMORY = Path("/dev/shm")  # noqa: S108  # a file system: mkdtemp makes a folder of our own in it


def make_folder(prefix: str, *, on_disk: bool = False) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=None if on_disk or not _has_room() else _MEMORY))


def _has_room() -> bool:
    """Asked for each folder: other runs on this machine take from the same memory."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return False
    return min(shutil.disk_usage(_MEMORY).free, _free_memory()) > ROOM_BYTES_MIN


def _free_memory() -> int:
    """What Linux could give to programs: a file system in memory may be larger than the memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
