"""What it costs before the first job: starting programs and workers, and a worker that is idle.

Each figure is a case of its own, with its unit in its name. Times are those of programs as a user starts them, with
bytecode, on a store that exists; `cpu_ms` is the processor time of all their processes. An idle worker has two runners.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..driving import SCRIPTS, Failed
from ..processes import end, memory_bytes, processor_seconds
from ..scenario import Case, Scenario, Setting

APP = "footprint:app"
IDLE_SECONDS, IDLE_SECONDS_QUICK = 10.0, 1.0
SETTLED_CPU_SECONDS = 0.02  # if it uses less processor time in a second, it has started
SETTLE_SECONDS_MAX = 60.0
SWEEP_SECONDS = 6.0  # within this time a worker has swept once and loaded what sweeps need
# The least that any worker with a guard and three other processes needs: the interpreter, asyncio and msgspec.
HOLDERS = ("import asyncio, msgspec, sys; sys.stdin.read()",) * 3 + (
    "import ctypes, select, signal, socket, struct, sys; sys.stdin.read()",
)


class Ran:
    """A program, from its start to its end."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.began = time.monotonic()
        with tempfile.TemporaryFile() as out:
            actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)]
            pid = os.posix_spawn(words[0], words, environment, file_actions=actions)
            _, status, used = os.wait4(pid, 0)
            self.seconds = time.monotonic() - self.began
            out.seek(0)
            self.said = out.read().decode()
        if status:
            raise Failed(f"{' '.join(words)} failed: {self.said[-2000:]}")
        self.cpu_ms = (used.ru_utime + used.ru_stime) * 1000


class Footprint:
    """The cases, on one store that exists."""

    def __init__(self, url: str, folder: Path, idle_seconds: float) -> None:
        self._mark, self._idle_seconds = folder / "mark", idle_seconds
        self._environment = {**os.environ, "FOOTPRINT_URL": url, "FOOTPRINT_MARK": str(self._mark)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._holdfast = str(Path(sys.executable).with_name("holdfast"))
        self._work = (self._holdfast, "work", APP, "--app-dir", str(SCRIPTS), "--runners", "2")
        self._idle_cpu: float | None = None

    def prepare(self) -> None:
        """Make sure that the store and all bytecode exist."""
        self.producer()
        self.first_job()

    def interpreter(self) -> dict[str, float]:
        ran = Ran((sys.executable, "-c", "pass"), self._environment)
        return {"value": ran.seconds * 1000, "cpu_ms": ran.cpu_ms}

    def version(self) -> dict[str, float]:
        ran = Ran((self._holdfast, "--version"), self._environment)
        return {"value": ran.seconds * 1000, "cpu_ms": ran.cpu_ms}

    def producer(self) -> dict[str, float]:
        elapsed, cpu = map(float, Ran((sys.executable, str(SCRIPTS / "footprint.py")), self._environment).said.split())
        return {"value": elapsed, "cpu_ms": cpu}

    def first_job(self) -> dict[str, float]:
        """Time to the end of the handler, and to the end of the worker, which drains."""
        self.producer()
        self._mark.unlink(missing_ok=True)
        ran = Ran((*self._work, "--drain"), self._environment)
        done = float(self._mark.read_text())
        return {"value": (done - ran.began) * 1000, "cpu_ms": ran.cpu_ms, "to_the_end_ms": ran.seconds * 1000}

    def idle_memory(self) -> dict[str, float]:
        """Also measures the processor time, for the case that follows."""
        with subprocess.Popen(self._work, env=self._environment, stdout=-3, stderr=-3, stdin=-3) as worker:
            try:
                until_settled(worker)
                time.sleep(SWEEP_SECONDS)
                first, began = processor_seconds(worker.pid), time.monotonic()
                time.sleep(self._idle_seconds)
                used, lasted = processor_seconds(worker.pid) - first, time.monotonic() - began
                self._idle_cpu = used / lasted * 100
                return {"value": memory_bytes(worker.pid) / 2**20}
            finally:
                end(worker)

    def idle_cpu(self) -> dict[str, float]:
        if self._idle_cpu is None:
            raise Failed("the idle worker was not measured")
        found, self._idle_cpu = self._idle_cpu, None
        return {"value": found}

    def bare_memory(self) -> dict[str, float]:
        holders = [
            subprocess.Popen((sys.executable, "-c", code), env=self._environment, stdin=subprocess.PIPE)
            for code in HOLDERS
        ]
        try:
            for one in holders:
                until_settled(one)
            return {"value": sum(memory_bytes(one.pid) for one in holders) / 2**20}
        finally:
            for one in holders:
                end(one)
                if one.stdin is not None:
                    one.stdin.close()


def until_settled(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has started: it then uses next to no processor time for a second."""
    deadline, used = time.monotonic() + SETTLE_SECONDS_MAX, -1.0
    while (now := processor_seconds(process.pid)) - used > SETTLED_CPU_SECONDS:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed("it did not start, or never had nothing to do")
        used = now
        time.sleep(1.0)


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    seconds = setting.seconds or (IDLE_SECONDS_QUICK if setting.quick else IDLE_SECONDS)
    with setting.place.area() as area, tempfile.TemporaryDirectory(prefix="holdfast-footprint-") as folder:
        one = Footprint(area.ours, Path(folder), seconds)
        one.prepare()
        yield [
            Case("bare interpreter, ms", "floor", one.interpreter),
            Case("holdfast --version, ms", "ours", one.version),
            Case("import and first enqueue, ms", "ours", one.producer),
            Case("start to first job done, ms", "ours", one.first_job),
            Case("idle worker, MB", "ours", one.idle_memory, rounds_max=1),
            Case("idle worker, % of a core", "ours", one.idle_cpu, rounds_max=1),
            Case("asyncio and msgspec in as many processes, MB", "floor", one.bare_memory, rounds_max=1),
        ]


SCENARIO = Scenario(
    "footprint", "Starts, and a worker with nothing to do", "value", "ms, MB, %", cases,
    ("sqlite", "postgres", "redis"), more_is_better=False, columns=("cpu_ms", "to_the_end_ms"), weight=60.0,
)  # fmt: skip
