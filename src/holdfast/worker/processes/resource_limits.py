"""Limits of an isolated attempt: memory, CPU time, file size, set on its own process while it runs.

Used in a runner that has one job at a time, and by the overseer, which adds up what such a runner's children use. Soft
limits only, so they can be lifted again for the next job. What is hit is named in the job's error: `memory`, `cpu`,
`file`.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Protocol

OUT_OF_MEMORY = 72  # exit code of a runner that had no memory left to say anything
STACK_BYTES = 16 << 20  # a thread may be started for the handler
LEAST_BYTES = 16 << 20  # of headroom: with less, not even the error could be told


class Limited(Protocol):
    """The options that limit an attempt."""

    @property
    def memory_limit(self) -> int | None: ...

    @property
    def cpu_limit(self) -> float | None: ...

    @property
    def file_limit(self) -> int | None: ...


class Limits:
    """This process's own limits."""

    def __init__(self) -> None:
        self._usual = {kind: resource.getrlimit(kind) for kind in _KINDS}

    def set(self, options: Limited) -> None:
        """Hold this process to the task's limits from now on."""
        if options.memory_limit is not None:
            headroom = max(LEAST_BYTES, options.memory_limit - memory_of("self", "RssAnon"))
            self._put(resource.RLIMIT_DATA, memory_of("self", "VmData") + headroom + STACK_BYTES)
        if options.cpu_limit is not None:
            self._put(resource.RLIMIT_CPU, int(time.process_time() + options.cpu_limit) + 1)
        if options.file_limit is not None:
            self._put(resource.RLIMIT_FSIZE, options.file_limit)

    def lift(self) -> bool:
        """Back to the usual limits; False where the attempt made that impossible, by lowering a hard one."""
        lifted = True
        for kind, usual in self._usual.items():
            try:
                resource.setrlimit(kind, usual)
            except (OSError, ValueError):
                lifted = False
        return lifted

    def _put(self, kind: int, amount: int) -> None:
        _, hard = self._usual[kind]
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))


_KINDS = (resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)


def memory_of(pid: int | str, field: str = "RssAnon") -> int:
    """Bytes of one kind of memory of a process; 0 where the system does not say or it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    start = text.find(f"\n{field}:")
    return int(text[start + len(field) + 2 :].split(None, 1)[0]) * 1024 if start >= 0 else 0


def children_of(pid: int) -> list[int]:
    """Direct children, of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split())
    except OSError:
        pass  # it is gone, or this kernel does not tell
    return found


def memory_of_family(pid: int) -> int:
    """Bytes of memory of its own that a process and its descendants have in RAM."""
    return memory_of(pid) + sum(memory_of_family(child) for child in children_of(pid))
