"""Real `holdfast work` processes on a small app, and ways to look at and hurt every part of their family."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.chaos.scene import journal_of, until

APP = '''
import asyncio, ctypes, json, os, re, signal, subprocess, sys, time
from holdfast import Context, Holdfast, RetryPolicy

HERE = os.path.dirname(os.path.abspath(__file__))
app = Holdfast(f"sqlite:///{HERE}/jobs.db")
VERSION = 1


def note(**facts):
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), **facts}) + "\\n"
    fd = os.open(f"{HERE}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


note(what="import", parent=os.getppid())


def gate_open():
    return os.path.exists(f"{HERE}/gate")


@app.task(name="quick", retry=0)
async def quick(ctx: Context, n: int) -> int:
    note(what="start", job=ctx.id, n=n, fence=ctx.fence)
    return n


@app.task(name="version", retry=0)
async def version() -> int:
    return VERSION


@app.task(name="quick_thread", retry=0)
def quick_thread(ctx: Context, n: int) -> int:
    note(what="start", job=ctx.id, n=n, fence=ctx.fence)
    return n


@app.task(name="ticks", retry=0)
def ticks(ctx: Context, obeys: bool = False) -> None:
    """Ticks in a thread until the gate opens."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    while not gate_open() and not (obeys and ctx.cancelled):
        note(what="tick", job=ctx.id, fence=ctx.fence)
        time.sleep(0.01)
    note(what="end", job=ctx.id, fence=ctx.fence)


@app.task(name="ticks_on_the_loop", retry=0)
async def ticks_on_the_loop(ctx: Context) -> None:
    """Ticks without ever letting go of the loop."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    while not gate_open():
        note(what="tick", job=ctx.id, fence=ctx.fence)
        time.sleep(0.01)


@app.task(name="waits", retry=0)
async def waits(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    try:
        while not gate_open():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(what="cancelled", job=ctx.id, fence=ctx.fence)
        raise
    note(what="end", job=ctx.id, fence=ctx.fence)


@app.task(name="blocks", retry=0)
async def blocks(ctx: Context, seconds: float) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    time.sleep(seconds)
    note(what="end", job=ctx.id, fence=ctx.fence)


@app.task(name="holds_the_gil", retry=0)
def holds_the_gil(ctx: Context, seconds: int) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    ctypes.PyDLL(None).sleep(seconds)
    note(what="end", job=ctx.id, fence=ctx.fence)


@app.task(name="regex", retry=0)
async def regex(ctx: Context, letters: int) -> None:
    """Backtracks for ever: one call into C that never lets go of the interpreter."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    re.match("(a+)+$", "a" * letters + "b")


@app.task(name="forks", retry=0, isolation="process", timeout=3)
def forks(ctx: Context, most: int) -> None:
    """A fork bomb, bounded in number for the sake of the machine it is tried on."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    for _ in range(most):
        if os.fork() == 0:
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
            time.sleep(600)
    time.sleep(600)


@app.task(name="dies", retry=0, max_stalls=1)
def dies(ctx: Context, how: str) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if how == "exit":
        os._exit(0)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "system_exit":
        sys.exit(3)
    elif how == "once":
        if not os.path.exists(f"{HERE}/died"):
            open(f"{HERE}/died", "w").close()
            os._exit(0)


@app.task(name="overruns", timeout=0.3, retry=RetryPolicy.fixed(0.1, limit=1))
def overruns(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    while not gate_open():
        time.sleep(0.01)


@app.task(name="overruns_on_the_loop", timeout=0.3, retry=0)
async def overruns_on_the_loop(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    time.sleep(60)


@app.task(name="has_children", retry=0)
def has_children(ctx: Context) -> None:
    """Two that ignore SIGTERM: one in a session of its own, one that nobody is parent of any more."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    code = "import os, signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(os.getpid(), flush=True); "
    code += "time.sleep(600)"
    one = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    note(what="child", job=ctx.id, child=int(one.stdout.readline()))
    double = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
    two = subprocess.Popen([sys.executable, "-c", double], stdout=subprocess.PIPE)
    note(what="child", job=ctx.id, child=int(two.stdout.readline()))
    two.wait()
    while not gate_open():
        time.sleep(0.01)


@app.task(name="prints", retry=0)
def prints(ctx: Context, text: str, times: int = 1) -> None:
    for _ in range(times):
        print(text)


@app.task(name="alone", retry=0, isolation="process", timeout=20)
def alone(ctx: Context, does: str = "") -> int:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if does == "prints":
        print("from python")
        subprocess.run(["echo", "from a child"])
        os.write(2, b"from below\\n")
    elif does == "floods":
        flood = "import os; [os.write(1, (b'x' * 999 + bytes([10])) * 1000) for _ in range(1050)]"
        subprocess.run([sys.executable, "-c", flood])
    elif does == "leaves":
        note(what="child", child=subprocess.Popen(["sleep", "600"]).pid)
    elif does == "waits":
        while not gate_open():
            time.sleep(0.01)
    return os.getpid()


@app.task(name="alone_on_a_loop", retry=0, isolation="process")
async def alone_on_a_loop(ctx: Context) -> int:
    note(what="start", job=ctx.id, fence=ctx.fence)
    time.sleep(0 if gate_open() else 600)
    return os.getpid()


@app.task(name="limited", retry=0, isolation="process", memory_limit=200 << 20, cpu_limit=1.0, file_limit=1 << 20)
def limited(ctx: Context, does: str) -> int:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if does == "hoards":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 20))
    elif does == "crumbs":
        crumbs = []
        while True:
            crumbs.append(object())
    elif does == "children hoard":
        code = "import time; x = b'x' * (100 << 20); time.sleep(60)"
        for child in [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]:
            child.wait()
    elif does == "spins":
        while True:
            pass
    elif does == "writes":
        with open(f"{HERE}/big", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
    return os.getpid()


@app.task(name="overruns_alone", retry=0, isolation="process", timeout=0.5)
def overruns_alone(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ctypes.PyDLL(None).sleep(60)


@app.on("worker_started")
def on_started(event):
    note(what="event", name=event.name)
'''


class Family:
    """One `holdfast work`: keeper, guard and runners."""

    def __init__(self, folder: Path, words: list[str], before: list[str]) -> None:
        self.log = folder / f"worker-{len(list(folder.glob('worker-*.log')))}.log"
        with self.log.open("wb") as sink:
            self.keeper = subprocess.Popen(
                [*before, sys.executable, "-m", "holdfast.cli", "work", "scene_app:app", "--app-dir", ".", *words],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=folder,
                start_new_session=True,
            )
        self.seen: set[int] = set()

    def guard(self) -> int:
        guard: int = until(lambda: next(iter(children(self.keeper.pid)), None), what="the guard")
        return guard

    def runners(self, count: int = 1) -> list[int]:
        """The runner processes, once there are this many."""
        guard = self.guard()
        found = until(lambda: now if len(now := children(guard)) >= count else None, what="runners")
        self.seen |= {guard, *found}
        return sorted(found)

    def tree(self) -> set[int]:
        return {self.keeper.pid} | below(self.keeper.pid)

    def stop(self, seconds: float = 90.0) -> int:
        self.keeper.terminate()
        return self.keeper.wait(seconds)

    def text(self) -> str:
        return self.log.read_text()


class ProcessScene:
    """A folder with the app in it, its journal, and the workers started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scene_app.py").write_text(APP)
        self.families: list[Family] = []

    def start(self, *words: str, before: list[str] | None = None) -> Family:
        given = " ".join(words)
        defaults = ["--lease", "3s"] if "--lease" not in given else []
        defaults += ["--runners", "1"] if "--runners" not in given else []
        family = Family(self.folder, [*defaults, *words], before or [])
        self.families.append(family)
        return family

    def change_code(self, old: str, new: str) -> None:
        """Put another app in place, in one step."""
        path = self.folder / "scene_app.py"
        text = path.read_text()
        assert old in text
        path.with_suffix(".new").write_text(text.replace(old, new))
        later = path.stat().st_mtime + 2.0  # compiled code counts as current within the second, if the size is the same
        os.utime(path.with_suffix(".new"), (later, later))
        path.with_suffix(".new").replace(path)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def journal(self) -> list[dict[str, Any]]:
        return journal_of(self.folder)

    def lines(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        wanted = {"what": what, **facts}.items()
        return [line for line in self.journal() if wanted <= line.items()]

    def journal_of_runs(self) -> list[dict[str, Any]]:
        """What handlers wrote while they ran."""
        return [line for line in self.journal() if "fence" in line]

    def lines_of_groups(self) -> list[dict[str, Any]]:
        """What handlers of grouped jobs wrote when they started and ended, in the order in which they did."""
        return [line for line in self.journal() if "group" in line]

    def app(self) -> Any:
        from holdfast import Holdfast

        return Holdfast(f"sqlite:///{self.folder / 'jobs.db'}")

    def close(self) -> None:
        for family in self.families:
            if family.keeper.poll() is None:
                for pid in below(family.keeper.pid):
                    send(pid, signal.SIGCONT)
                family.keeper.send_signal(signal.SIGCONT)
                family.keeper.kill()
            family.keeper.wait()


def children(pid: int) -> list[int]:
    return [child for child, parent in parents().items() if parent == pid]


def below(pid: int) -> set[int]:
    table, found, waiting = parents(), set[int](), [pid]
    while waiting:
        here = waiting.pop()
        for child, parent in table.items():
            if parent == here and child not in found:
                found.add(child)
                waiting.append(child)
    return found


def parents() -> dict[int, int]:
    """pid → parent of every process that is not a zombie."""
    found = ((int(name), parent_of(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: parent for pid, parent in found if parent is not None}


def parent_of(pid: int) -> int | None:
    """None for a zombie, and where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split(None, 2)[:2]
    except (OSError, ValueError):
        return None
    return None if state in b"ZX" else int(parent)


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if parent_of(pid) is not None]


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
