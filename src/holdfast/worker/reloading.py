"""Noticing that code changed: `holdfast work --reload`, for development.

Used by the process worker. Looks at the modification times of the Python files below a folder; it imports nothing and
restarts nothing itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

LOOK_SECONDS = 0.5
FILES_MAX = 20_000
LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


def python_files(folder: str) -> Iterator[tuple[str, int]]:
    """The Python files below a folder with their times; hidden folders and installed packages are left out."""
    count, waiting = 0, [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue  # it was removed meanwhile
        for entry in entries:
            if entry.name.startswith(".") or entry.name in LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                try:
                    yield entry.path, entry.stat().st_mtime_ns
                except OSError:
                    continue
                count += 1
                if count >= FILES_MAX:
                    return


async def watch_code(folder: str, changed: Callable[[str], None]) -> None:
    """Call `changed` with a file's name each time the code below `folder` differs from the last look."""
    loop = asyncio.get_running_loop()
    seen = await loop.run_in_executor(None, lambda: dict(python_files(folder)))
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await loop.run_in_executor(None, lambda: dict(python_files(folder)))
        different = now.items() ^ seen.items()
        if different:
            seen = now
            changed(min(different)[0])
