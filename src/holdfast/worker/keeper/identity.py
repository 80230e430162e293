"""Who a worker is, and which registered workers of this host are provably dead.

Called by the keeper at start. Proof of death needs the same boot and the same pid namespace: elsewhere a pid says
nothing. It also needs that nothing is left of what that worker's keeper had started. Where proof is impossible the
answer is "alive"; the lease then lapses by itself.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from ...clock import boot_id
from ...records import WorkerRecord


def new_worker(*, lease: float, queues: tuple[str, ...], slots: int, isolates: bool = False) -> WorkerRecord:
    """A worker of this process under a new random id."""
    return WorkerRecord(
        id=_new_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        lease_seconds=lease,
        queues=queues,
        slots=slots,
        isolates=isolates,
    )


def provably_dead(workers: Iterable[WorkerRecord], me: WorkerRecord) -> list[str]:
    """Ids of the workers that ran on this very system and whose process is gone, or whose pid is another's now."""
    if not me.boot_id or sys.platform == "win32":  # os.kill(pid, 0) is no question on Windows
        return []
    here = (me.host, me.boot_id, me.pid_namespace)
    return [
        worker.id
        for worker in workers
        if worker.id != me.id
        and worker.pid > 0
        and (worker.host, worker.boot_id, worker.pid_namespace) == here
        and _process_gone(worker)
        and not _family_alive(worker)
    ]


def process_mark(pid: int) -> str:
    """What tells a process from every other of this boot: its pid and when it started, in ticks."""
    return f"{pid}-{_start_ticks(pid) or 0:x}"


def pid_namespace() -> str:
    """Which pid namespace this process is in; "" where the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _new_id() -> str:
    # The process's start, in clock ticks since boot, makes a reused pid provable whatever the wall clock did since.
    return f"{secrets.token_hex(8)}-{_start_ticks(os.getpid()) or 0:x}"


def _process_gone(worker: WorkerRecord) -> bool:
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    found = _stat(worker.pid)
    if found is None:
        return False
    if found[0] in "ZX" and int(found[17]) <= 1:
        return True  # only its entry is left, waiting for its parent to take notice
    _, _, recorded = worker.id.rpartition("-")
    try:
        ticks = int(recorded, 16)
    except ValueError:
        return False
    return ticks > 0 and ticks != int(found[19])


def _family_alive(worker: WorkerRecord) -> bool:
    """Whether a process that worker's keeper had started is still there: its handlers may not have stopped yet."""
    if sys.platform != "linux":
        return False
    from ..processes import guard  # here, because it can be loaded only where there are such processes

    mark = f"{worker.pid}-{worker.id.rpartition('-')[2]}"
    return any(guard.marker_of(pid, guard.KEEPER) == mark for pid in guard.processes())


def _start_ticks(pid: int) -> int | None:
    found = _stat(pid)
    return None if found is None else int(found[19])


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state on: [0] state, [17] threads, [19] start in ticks since boot."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return fields if len(fields) > 19 else None
