"""Resource limits of an isolated attempt: memory, CPU time and file size, set on its process while it runs.

Used in dedicated runners, and by the monitor, which adds up the memory of such a runner's children. Soft limits only,
so that they can be lifted for the next job. The job's error names the limit that was hit: `memory`, `cpu`, `file`.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Protocol

OUT_OF_MEMORY = 72  # exit code of a runner with no memory left to report anything
STACK_BYTES = 16 << 20  # allowance for the stack of a thread started for the handler
LEAST_BYTES = 16 << 20  # minimum headroom: with less, not even the error could be reported


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
        """Apply the task's limits to this process."""
        if options.memory_limit is not None:
            headroom = max(LEAST_BYTES, options.memory_limit - memory_of("self", "RssAnon"))
            self._put(resource.RLIMIT_DATA, memory_of("self", "VmData") + headroom + STACK_BYTES)
        if options.cpu_limit is not None:
            self._put(resource.RLIMIT_CPU, int(time.process_time() + options.cpu_limit) + 1)
        if options.file_limit is not None:
            self._put(resource.RLIMIT_FSIZE, options.file_limit)

    def lift(self) -> bool:
        """Restore the usual limits; False if the attempt made that impossible by lowering a hard limit."""
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
    """One memory field of a process in bytes; 0 if the process is gone or the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    start = text.find(f"\n{field}:")
    return int(text[start + len(field) + 2 :].split(None, 1)[0]) * 1024 if start >= 0 else 0


def children_of(pid: int) -> list[int]:
    """Direct children of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split())
    except OSError:
        pass  # it is gone, or this kernel does not report children
    return found


def memory_of_family(pid: int) -> int:
    """Resident anonymous memory of a process and its descendants, in bytes."""
    return memory_of(pid) + sum(memory_of_family(child) for child in children_of(pid))


def limit_hit(wait_status: int) -> str:
    """Which resource limit ended an isolated attempt's process; "" if none did."""
    if os.WIFSIGNALED(wait_status):
        return "cpu" if os.WTERMSIG(wait_status) == signal.SIGXCPU else ""
    return "memory" if os.waitstatus_to_exitcode(wait_status) == OUT_OF_MEMORY else ""
