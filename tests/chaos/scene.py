"""A small app whose handlers keep a journal, and real worker processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

APP = '''
import json, os, time

OFF = float(os.environ.get("SCENE_CLOCK_OFF", "0"))  # seconds by which this "host" has the wrong time
if OFF:
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + OFF
    time.time_ns = lambda: wall_ns() + int(OFF * 1e9)

from holdfast import Context, Holdfast, RetryPolicy

HERE = os.path.dirname(os.path.abspath(__file__))
app = Holdfast(os.environ["SCENE_URL"])


def note(**facts):
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), **facts}) + "\\n"
    fd = os.open(f"{HERE}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def gate_open():
    return os.path.exists(f"{HERE}/gate")


@app.task(name="step", retry=2)
async def step(ctx: Context, group: str, number: int) -> int:
    note(what="start", job=ctx.id, group=group, number=number, fence=ctx.fence)
    note(what="end", job=ctx.id, group=group, number=number, fence=ctx.fence)
    return number


@app.task(name="stuck", retry=2)
def stuck(ctx: Context, group: str, number: int) -> int:
    """Holds still until the gate opens (or for ever)."""
    note(what="start", job=ctx.id, group=group, number=number, fence=ctx.fence)
    while not gate_open():
        note(what="tick", job=ctx.id, group=group, number=number, fence=ctx.fence)
        time.sleep(0.02)
    note(what="end", job=ctx.id, group=group, number=number, fence=ctx.fence)
    return number


@app.task(name="fails_once", retry=RetryPolicy.fixed(1.0, limit=2))
def fails_once(ctx: Context, number: int) -> int:
    note(what="start", job=ctx.id, number=number, fence=ctx.fence)
    if ctx.failures == 0:
        raise RuntimeError("once")
    return number


@app.task(name="once", retry=0, max_stalls=0)
def once(ctx: Context, number: int) -> None:
    note(what="start", job=ctx.id, number=number, fence=ctx.fence)
    while not gate_open():
        time.sleep(0.02)


@app.task(name="blocks_the_loop")
async def blocks_the_loop(ctx: Context, seconds: float) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    time.sleep(seconds)
    note(what="end", job=ctx.id, fence=ctx.fence)


if __name__ == "__main__":
    import sys
    options = json.loads(sys.argv[1])
    app.work(**options)
'''


class Scene:
    """A folder with the app in it, its journal, and the processes started in it."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'jobs.db'}"
        (folder / "scene_app.py").write_text(APP)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_worker(self, *, clock_off: float = 0.0, **options: Any) -> subprocess.Popen[bytes]:
        """A worker process; `clock_off`: by how many seconds its host has the wrong time."""
        options = {"lease": 2.0, "slots": 4, **options}
        environment = {**os.environ, "SCENE_URL": self.url, "SCENE_CLOCK_OFF": str(clock_off)}
        command = [sys.executable, str(self.folder / "scene_app.py"), json.dumps(options)]
        process = subprocess.Popen(command, env=environment)
        self.processes.append(process)
        return process

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a worker between two of its transactions: inside of one it would keep every other from writing, too."""

        def stopped_without_the_lock() -> bool:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            lock = sqlite3.connect(self.folder / "jobs.db", isolation_level=None, timeout=0.1)
            try:
                lock.execute("BEGIN IMMEDIATE")
                return True
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                return False
            finally:
                lock.close()

        until(stopped_without_the_lock, what="it is stopped and does not hold the write lock")

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def journal(self) -> list[dict[str, Any]]:
        return journal_of(self.folder)

    def starts(self, **facts: Any) -> list[dict[str, Any]]:
        wanted = {"what": "start", **facts}.items()
        return [line for line in self.journal() if wanted <= line.items()]

    def app(self) -> Any:
        """This process's own app on the same store."""
        from holdfast import Holdfast

        return Holdfast(self.url)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def journal_of(folder: Path) -> list[dict[str, Any]]:
    """What processes noted in a scene's folder, in order; the last line may be half written, and is left for later."""
    path = folder / "journal"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def until(condition: Callable[[], Any], seconds: float = 90.0, what: str = "") -> Any:
    """Wait for a condition, bounded. Looking takes a tenth of a processor at most: what is waited for needs it, and so
    do the tests beside it."""
    deadline, looked = time.monotonic() + seconds, time.process_time()
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(min(max(0.02, 9 * (time.process_time() - looked)), 0.2))
        looked = time.process_time()
    return answer


def overlaps(journal: list[dict[str, Any]], by: str) -> list[tuple[Any, ...]]:
    """Pairs of runs of one job (by="job") or one group (by="group") that overlapped in real time."""
    runs: dict[tuple[Any, Any], list[float]] = {}
    names: dict[tuple[Any, Any], Any] = {}
    for line in journal:
        run = (line["job"], line["fence"])
        runs.setdefault(run, []).append(line["at"])
        names[run] = line[by]
    found = []
    spans = sorted((min(times), max(times), run) for run, times in runs.items())
    for place, (_, end, run) in enumerate(spans):
        for other_start, _, other in spans[place + 1 :]:
            if other_start < end and names[run] == names[other]:
                found.append((run, other))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
