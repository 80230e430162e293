"""Processor time and memory of process trees, read from /proc; and how to end a tree. Linux only.

Called by driving.py and places.py. Ends only the processes it is given, by process id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")
END_SECONDS_MAX = 10.0
LOOKS_MAX = 5


class Stat(NamedTuple):
    parent: int
    children_seconds: float  # on a processor, of those children that ended and were waited for


def _stats() -> dict[int, Stat]:
    found: dict[int, Stat] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = Stat(int(words[1]), sum(map(int, words[13:15])) / TICK)
    return found


def tree(root: int, stats: dict[int, Stat] | None = None) -> list[int]:
    """The process and all its descendants."""
    stats = stats or _stats()
    found = [root]
    for pid in found:
        found += [child for child, stat in stats.items() if stat.parent == pid]
    return found


def processor_seconds(root: int) -> float:
    """Of the process and all its descendants since they started: to the nanosecond for live threads, to the tick for
    processes that have ended.
    """
    for _ in range(LOOKS_MAX):
        stats = _stats()
        found = tree(root, stats)
        total = sum(_used(pid, stats) for pid in found)
        if tree(root) == found:  # else a process that ended meanwhile may be missing or counted twice
            break
    return total


def _used(pid: int, stats: dict[int, Stat]) -> float:
    total = stats[pid].children_seconds if pid in stats else 0.0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(thread.read_text().split()[0]) / 1e9
    return total


def machine_seconds() -> float:
    """Busy seconds of all processors together since boot."""
    words = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(words) - words[3] - words[4]) / TICK


def written_bytes(root: int) -> int:
    """Bytes handed to the disk by the process and its live descendants."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            total += int(dict(line.split(": ") for line in lines)["write_bytes"])
    return total


def memory_bytes(root: int) -> int:
    """Proportional share (Pss) of the process and its descendants: shared pages are counted once."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return total


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and every descendant at once, like a power cut."""
    for pid in tree(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate it, then kill it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
            return
        kill(process)
