"""A worker's identity, and which registered workers of this host are provably dead.

Called by the keeper at start. Proof of death requires the same boot and the same pid namespace: elsewhere a pid means
nothing. It also requires that no process started by that worker's keeper is left. Without proof a worker counts as
alive; its lease then expires by itself.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...lazy import import_lazily

if TYPE_CHECKING:
    from ... import clock, records
    from ...records import WorkerRecord
else:
    import_lazily(globals(), "...clock", "...records")  # what is launched first is marked before they are imported


def new_worker(*, lease: float, queues: tuple[str, ...], slots: int, isolates: bool = False) -> WorkerRecord:
    """A record for this process under a new random id."""
    return records.WorkerRecord(
        id=_new_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=clock.boot_id(),
        pid_namespace=pid_namespace(),
        lease_seconds=lease,
        queues=queues,
        slots=slots,
        isolates=isolates,
    )


def provably_dead(workers: Iterable[WorkerRecord], me: WorkerRecord) -> list[str]:
    """Ids of workers that ran on this very system and whose process is gone or whose pid has been reused."""
    if not me.boot_id or sys.platform == "win32":  # on Windows, os.kill(pid, 0) is not a mere existence check
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
    """Identifies a process uniquely within this boot: its pid and its start time in ticks."""
    return f"{pid}-{_start_ticks(pid) or 0:x}"


def pid_namespace() -> str:
    """The pid namespace of this process; "" if the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _new_id() -> str:
    # The start time in clock ticks since boot proves that a pid was reused, whatever the wall clock did meanwhile.
    return f"{os.urandom(8).hex()}-{_start_ticks(os.getpid()) or 0:x}"


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
    if found[_STATE] in "ZX" and int(found[_THREADS]) <= 1:
        return True  # a zombie without other threads, waiting to be reaped by its parent
    _, _, recorded = worker.id.rpartition("-")
    try:
        ticks = int(recorded, 16)
    except ValueError:
        return False
    return ticks > 0 and ticks != int(found[_START_TICKS])


def _family_alive(worker: WorkerRecord) -> bool:
    """Whether a process started by that worker's keeper is still alive: its handlers may not have stopped yet."""
    if sys.platform != "linux":
        return False
    from ..processes import guard  # imported here: it cannot be loaded on Windows

    mark = f"{worker.pid}-{worker.id.rpartition('-')[2]}"
    return any(guard.marker_of(pid, guard.KEEPER) == mark for pid in guard.processes())


def _start_ticks(pid: int) -> int | None:
    found = _stat(pid)
    return None if found is None else int(found[_START_TICKS])


_STATE, _THREADS, _START_TICKS = 0, 17, 19  # indexes into the fields of _stat; the start is in ticks since boot


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    return fields if len(fields) > 19 else None
