"""Processor time of processes and of the machine, read from /proc while they run.

Used by measuring.py and workers.py. It only reads, so it never disturbs the watched processes. Linux only.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
EVERY_SECONDS = 0.02

Reading = Mapping[str, float]  # role → processor seconds so far


def thread_seconds(pid: int, thread: int) -> float:
    """Processor seconds of one thread, to the nanosecond; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def process_seconds(pid: int) -> float:
    """Processor seconds of all current threads."""
    return sum(thread_seconds(pid, thread) for thread in threads_of(pid))


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads_of(pid):
        try:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
        except OSError:
            continue
    return found


def tree_seconds(root: int) -> float:
    """Seconds of a process and its children, including those that have ended: all that a server used."""
    try:
        fields = Path(f"/proc/{root}/stat").read_text().rpartition(")")[2].split()
        reaped = (int(fields[13]) + int(fields[14])) / TICKS
    except (OSError, IndexError):
        reaped = 0.0
    return process_seconds(root) + reaped + sum(process_seconds(child) for child in children_of(root))


def worker_seconds(pid: int) -> dict[str, float]:
    """A worker's parts: the keeper's own thread, its other threads (SQLite's), guard, runners."""
    main = thread_seconds(pid, pid)
    guards = children_of(pid)
    runners = [runner for guard in guards for runner in children_of(guard)]
    return {
        "keeper": main,
        "keeper_threads": process_seconds(pid) - main,
        "guard": sum(process_seconds(guard) for guard in guards),
        "runners": sum(process_seconds(runner) for runner in runners),
    }


def machine_seconds() -> dict[str, float]:
    """Busy seconds of all processors since boot, including those that the host took from this machine."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupt, soft, steal, *_ = map(int, words)
    return {"machine": (user + nice + system + interrupt + soft + steal) / TICKS}


class Watch:
    """Takes readings in a thread of its own; `between` returns what was used between two moments."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._readings: list[tuple[float, Reading]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._readings.append((time.perf_counter(), self._read()))

    def between(self, first: float, last: float) -> dict[str, float]:
        """Seconds used per role between two moments of the steady clock, interpolated between readings."""
        roles = {role for _, reading in self._readings for role in reading}
        return {role: self._at(last, role) - self._at(first, role) for role in roles}

    def _at(self, moment: float, role: str) -> float:
        points = [(when, reading[role]) for when, reading in self._readings if role in reading]
        if moment <= points[0][0]:
            return points[0][1]
        for (before, low), (after, high) in itertools.pairwise(points):
            if before <= moment <= after:
                return low + (high - low) * (moment - before) / (after - before)
        return points[-1][1]


def moment_of(counts: Sequence[tuple[float, int]], jobs: float) -> float:
    """When this many were done, interpolated between two counts."""
    for (before, low), (after, high) in itertools.pairwise(counts):
        if low <= jobs <= high and high > low:
            return before + (after - before) * (jobs - low) / (high - low)
    raise RuntimeError(f"it was over before it could be looked at; give it more than {jobs:.0f} jobs")
