"""Describes what a run was made on: machine, versions. Called by bench/run; reveals no names of hosts or users."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

from .peers import PEERS

PACKAGES = ("holdfast", "msgspec", "psycopg", "redis", "hiredis", "asyncpg", "uvloop")


def facts() -> dict[str, str]:
    """Processor, cores, memory, system, and how busy other processes kept it."""
    name, total = "", ""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    with contextlib.suppress(OSError, ValueError):
        total = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    return {
        "processor": name or platform.processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": total,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "load at start": f"{os.getloadavg()[0]:.1f}",
    }


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {name: peer.packages[0] for name, peer in PEERS.items()}
