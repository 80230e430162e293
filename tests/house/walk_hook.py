"""Notes which files of the package are called, and when: imported first in each process of a worker under test.

Used by test_walk.py. A process that exits writes what it saw into the folder HOLDFAST_WALK names.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

ROOT = f"{Path(holdfast.__file__).parent}/"
GAP_SECONDS = 0.0005  # a file called again sooner is not noted again
# Timers that run beside every job. What they call does not count, whenever the machine lets them run.
BESIDE = {
    "worker/keeper/lease_renewal.py",
    "backends/sqlite/renew.py",  # what the renewal does on the writer's thread
    "worker/keeper/recorder.py",
    "backends/sqlite/history.py",  # what the recorder does on the writer's thread
    "worker/keeper/reports.py",
    "worker/keeper/watchdog.py",
    "worker/keeper/sweeps.py",
    "worker/keeper/cron_ticker.py",
    "InProcessRunners.watch_forever",
    "TimeoutMonitor.watch_forever",
}

seen: dict[str, list[float]] = {}  # by file, on the clock that all processes share


def file_of(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    return path[len(ROOT) :] if path.startswith(ROOT) else ""


def is_beside(frame: FrameType) -> bool:
    """Whether a timer is the reason for this call."""
    above: FrameType | None = frame
    while above is not None:
        if BESIDE & {file_of(above), above.f_code.co_qualname}:
            return True
        above = above.f_back
    return False


def note(frame: FrameType, event: str, _: Any) -> None:
    if event != "call" or not (file := file_of(frame)):
        return
    times, now = seen.setdefault(file, []), time.monotonic()
    if (not times or now - times[-1] > GAP_SECONDS) and not is_beside(frame):
        times.append(now)


def write_down(folder: str) -> None:
    sys.setprofile(None)
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(seen))


if "HOLDFAST_WALK" in os.environ:
    threading.setprofile(note)
    sys.setprofile(note)
    atexit.register(write_down, os.environ["HOLDFAST_WALK"])
