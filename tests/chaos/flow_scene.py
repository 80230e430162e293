"""A store, and a crew of processes on it that can be killed one by one: what the tests of flow control stand on."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.lifecycle import State
from holdfast.records import CronEntry, JobQuery, JobRecord
from tests.chaos.scene import journal_of, until

A = TypeVar("A")
PROGRAM = Path(__file__).with_name("flow_app.py")
SECONDS_MAX = 60.0
_numbers = itertools.count(1)


Store = tuple[str, Callable[[], None]]  # its address, and how it is cleared away


def _sqlite(folder: Path) -> Store:
    return f"sqlite:///{folder / 'jobs.db'}", lambda: None


def _postgres(folder: Path) -> Store:
    import psycopg

    from tests.servers import postgres

    server, name = postgres.shared_server(), f"flow_{next(_numbers)}"

    def clear() -> None:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")

    return server.url(name), clear


def _redis(folder: Path) -> Store:
    from tests.servers import valkey

    server, name = valkey.shared_server(), f"flow_{next(_numbers)}"
    return server.url(name), lambda: valkey.empty(server, name)


STORES: dict[str, Callable[[Path], Store]] = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis}


class Crew:
    """The processes of one test, their store and their journal."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.url, self._clear = STORES[store](folder)
        self._starter = subprocess.Popen(
            [sys.executable, str(PROGRAM), self.url, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, run: str, **options: Any) -> int:
        """Another process of the app; its pid."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write(json.dumps({"run": run, **options}) + "\n")
        self._starter.stdin.flush()
        return int(self._starter.stdout.readline())

    def kill(self, *pids: int) -> None:
        for pid in pids:
            if not self.is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            until(partial(self.is_gone, pid), what="a killed process is gone")

    def is_gone(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        self._starter.communicate(timeout=SECONDS_MAX)
        self._clear()

    # ------------------------------------------------------------------ looking

    def app(self) -> Holdfast:
        """This process's own app on the same store."""
        return Holdfast(self.url)

    def lines(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """What the processes noted of that kind, in order."""
        wanted = {"what": what, **facts}.items()
        return [line for line in journal_of(self.folder) if wanted <= line.items()]

    def asked(self, question: Callable[[Backend], Awaitable[A]]) -> A:
        """One question to the store, past the app."""

        async def ask() -> A:
            backend = open_backend(self.url)
            await backend.open()
            try:
                return await question(backend)
            finally:
                await backend.close()

        return asyncio.run(ask())

    def jobs(self, **query: Any) -> list[JobRecord]:
        return self.asked(lambda backend: backend.find(JobQuery(**{"limit": 100_000, **query})))

    def entries(self) -> list[CronEntry]:
        return list(self.asked(lambda backend: backend.entries()))

    # ------------------------------------------------------------------ the clock of cron

    def set_clock(self, base: float, pace: float = 0.0, end: float = 1e12) -> None:
        """What time it is for the schedulers, how fast it goes on, and where it stands still."""
        new = self.folder / "clock.new"
        new.write_text(json.dumps([time.monotonic(), base, pace, end]))
        new.replace(self.folder / "clock")

    def clock(self) -> float:
        since, base, pace, end = json.loads((self.folder / "clock").read_text())
        return float(min(base + pace * (time.monotonic() - since), end))


def all_succeeded(app: Holdfast) -> bool:
    """Whether there is no job in any other state."""
    counts = app.counts().values()
    return {state for states in counts for state, number in states.items() if number} == {State.SUCCEEDED}


def spans(jobs: Iterable[JobRecord]) -> list[tuple[float, float, str]]:
    """(start, end, id) of every lease the jobs had, by the store's clock."""
    found: list[tuple[float, float, str]] = []
    for job in jobs:
        found += [(error.started_at, error.at, job.id) for error in job.errors if error.started_at is not None]
        if job.started_at is not None and job.finished_at is not None:
            found.append((job.started_at, job.finished_at, job.id))
    return sorted(found)


def most_at_once(runs: Iterable[tuple[float, float]]) -> int:
    """How many of these spans (start, end) overlapped at most."""
    steps = sorted([(start, 1) for start, _ in runs] + [(end, -1) for _, end in runs])
    return max(itertools.accumulate(step for _, step in steps), default=0)


def handler_spans(lines: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    """(start, end) of every run as its handler noted it; a run that was killed ends with the last it noted."""
    runs: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        runs.setdefault((line["job"], line["fence"]), []).append(line["at"])
    return [(min(times), max(times)) for times in runs.values()]
