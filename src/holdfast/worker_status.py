"""A worker's portrait: its runner processes as people see them, small enough to travel with a renewal.

Drawn by the process worker (worker/processes/pool.py), kept by the stores as they are given it, read by the command
line and by whoever calls `app.workers()`. Never holds arguments or results: pids, numbers, ids of jobs, and names of
tasks that the worker does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

PORTRAIT_BYTES_MAX = 16 << 10
JOBS_SHOWN_MAX = 20  # of one runner
TASKS_SHOWN_MAX = 20
TASK_CHARS_MAX = 120
MEMORY_STEP_BYTES = 1 << 20  # memory is shown in such steps: a runner that does nothing looks the same every time


class RunnerView(Struct, frozen=True, kw_only=True):
    """One runner process."""

    pid: int
    state: str  # starting, ready, leaving, gone
    alone: bool  # it runs one job at a time and has no neighbours
    slots: int
    running: int
    done: int  # jobs since it started
    memory_bytes: int
    responds: bool  # False: a handler holds its loop or its interpreter
    jobs: tuple[str, ...] = ()  # ids, oldest first; all of them, or as many as there was room for


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """All runners of a worker, or as many as there was room for."""

    runners: tuple[RunnerView, ...] = ()
    left_out: int = 0
    unbegun: tuple[str, ...] = ()  # ids of jobs it holds whose handlers no runner has begun for a while
    unknown: tuple[str, ...] = ()  # tasks it was given jobs of and does not know


def draw(runners: Sequence[RunnerView], unbegun: Sequence[str] = (), unknown: Sequence[str] = ()) -> bytes:
    """The portrait as JSON, at most PORTRAIT_BYTES_MAX: with fewer jobs, then with fewer runners, where it must be."""
    whole = WorkerStatus(
        unbegun=tuple(unbegun[:JOBS_SHOWN_MAX]),
        unknown=tuple(name[:TASK_CHARS_MAX] for name in unknown[:TASKS_SHOWN_MAX]),
    )
    for most in (JOBS_SHOWN_MAX, 5, 1, 0):
        shown = tuple(msgspec.structs.replace(one, jobs=one.jobs[:most]) for one in runners)
        drawn = msgspec.json.encode(msgspec.structs.replace(whole, runners=shown))
        if len(drawn) <= PORTRAIT_BYTES_MAX:
            return drawn
    while len(drawn) > PORTRAIT_BYTES_MAX:
        shown = shown[: len(shown) * 3 // 4]
        left_out = len(runners) - len(shown)
        drawn = msgspec.json.encode(msgspec.structs.replace(whole, runners=shown, left_out=left_out))
    return drawn


def read(portrait: bytes | None) -> WorkerStatus | None:
    """What a worker showed; None where it showed nothing, or nothing this version can read."""
    if portrait is None:
        return None
    try:
        return msgspec.json.decode(portrait, type=WorkerStatus)
    except msgspec.DecodeError:
        return None


def may_not_know(portrait: bytes | None, task: str) -> bool:
    """Whether a worker that shows this may not know the task. One whose list is full, or cannot be read, may not."""
    view = read(portrait)
    if view is None:
        return portrait is not None
    return task[:TASK_CHARS_MAX] in view.unknown or len(view.unknown) >= TASKS_SHOWN_MAX


def bounded(portrait: bytes | None) -> bytes | None:
    """The portrait as stores take it: one that is too long is not taken."""
    return None if portrait is None or len(portrait) > PORTRAIT_BYTES_MAX else portrait
