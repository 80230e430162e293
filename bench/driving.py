"""Runs one contender for one turn: empties its area, enqueues, starts workers, reads what they report.

Called by the scenarios. Every contender, ours included, is a script in contenders/ with processes of its own, and is
measured by the same code here. A contender that fails or does not end in time is an error, not a slow figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from . import processes
from .environments import FOLDER as PEER_FOLDER
from .environments import ready
from .peers import PEERS
from .places import Area, Reading

HERE = Path(__file__).parent
SCRIPTS = HERE / "contenders"
LOOK_SECONDS = 0.01
SLOTS = "400"  # of our workers, where rates are measured
Kind = str  # "ours", "peer" or "floor"


class Failed(Exception):
    """A contender did not do what it was asked."""


class Contender(NamedTuple):
    name: str
    kind: Kind
    command: tuple[str, ...]
    settings: Mapping[str, str] = {}
    share: float = 1.0
    workers: int = 1

    def like(self, name: str, workers: int = 1, **settings: str) -> Contender:
        """The same contender under another name with other settings."""
        return self._replace(name=name, workers=workers, settings={**self.settings, **settings})


def ours(name: str = "holdfast work", **settings: str) -> Contender:
    return Contender(
        name, "ours", (sys.executable, str(SCRIPTS / "with_holdfast.py")), {"BENCH_SLOTS": SLOTS, **settings}
    )


def floor(store: str, **settings: str) -> Contender:
    script = SCRIPTS / f"bare_{'redis' if store == 'cluster' else store}.py"
    return Contender("bare store", "floor", (sys.executable, str(script)), settings)


def limit(**settings: str) -> Contender:
    """The handler alone, without a queue: the most that processes, threads or coroutines can do."""
    return Contender("limit", "floor", (sys.executable, str(SCRIPTS / "bare_handler.py")), settings)


def peer(name: str, store: str) -> Contender:
    """A peer as a contender. Raises LeftOut if it is not available here."""
    one = PEERS[name]
    settings = dict(one.stores[store])
    if one.language == "node":
        settings["NODE_PATH"] = str(PEER_FOLDER / name / "node_modules")
    return Contender(name, "peer", (*ready(name), str(SCRIPTS / one.script)), settings, one.share)


class Tallied(NamedTuple):
    """Handler calls of all processes so far."""

    calls: int
    first: float
    last: float


class Turn:
    """One contender on an empty area, with a folder for its reports."""

    def __init__(self, contender: Contender, area: Area, folder: Path) -> None:
        self.contender, self.area, self.folder = contender, area, folder
        url = area.ours if contender.kind == "ours" else area.theirs
        path = f"{Path(contender.command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {
            **os.environ,
            "PATH": path,
            **contender.settings,
            "BENCH_URL": url,
            "BENCH_FOLDER": str(folder),
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def call(self, *words: object, seconds_max: float = 300.0) -> float:
        """Run a verb to its end. Return the jobs per second, if it reports them."""
        command = [*self.contender.command, *map(str, words)]
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=seconds_max, cwd=self.folder
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{words[0]} took more than {seconds_max:.0f} s") from None
        if done.returncode:
            raise Failed(f"{words[0]} failed:\n{done.stderr[-2000:]}")
        told = done.stdout.strip().splitlines()
        return float(json.loads(told[-1])["per_second"]) if told else 0.0

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*self.contender.command, "work"], env={**self._environment, **settings}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self.folder,
            )  # fmt: skip
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            processes.end(process)
        self._running.clear()

    def kill(self) -> None:
        for process in self._running:
            processes.kill(process)
        self._running.clear()

    def tallied(self) -> Tallied:
        read = [path.read_bytes()[:24] for path in self.folder.glob("*.tally")]
        found = [struct.unpack("qdd", one) for one in read if len(one) == 24]
        found = [one for one in found if one[0]]
        if not found:
            return Tallied(0, 0.0, 0.0)
        return Tallied(sum(one[0] for one in found), min(one[1] for one in found), max(one[2] for one in found))

    def wait(self, jobs: int, seconds_max: float) -> Tallied:
        """Wait until this many handler calls have been tallied."""
        deadline = time.monotonic() + seconds_max
        while (tallied := self.tallied()).calls < jobs:
            if time.monotonic() > deadline:
                raise Failed(
                    f"{self.contender.name}: {tallied.calls} of {jobs} jobs after {seconds_max:.0f} s: {self.said()}"
                )
            time.sleep(LOOK_SECONDS)
        return tallied

    def look(self, jobs: int, seconds: float) -> Tallied:
        """The tally after this many seconds, or as soon as it has this many handler calls."""
        deadline = time.monotonic() + seconds
        while (tallied := self.tallied()).calls < jobs and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return tallied

    def said(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace")[-1500:] if log.exists() else ""

    def seconds_used(self) -> float:
        return sum(processes.processor_seconds(one.pid) for one in self._running)

    def written(self) -> int:
        return sum(processes.written_bytes(one.pid) for one in self._running)


@contextlib.contextmanager
def turn(contender: Contender, area: Area) -> Iterator[Turn]:
    with tempfile.TemporaryDirectory(prefix="holdfast-turn-") as folder:
        one = Turn(contender, area, Path(folder))
        try:
            if contender.kind != "ours":  # ours sets up its store itself
                one.call("prepare")
            yield one
        finally:
            one.end()


def drained(
    one: Turn, jobs: int, *, shape: str = "none", seconds_max: float = 120.0, partly: bool = False
) -> dict[str, float]:
    """Enqueue, then run all jobs: the rate between the first and the last handler call, and the cost of a job.

    Costs are counted from the first check that saw a handler call, so that they do not include start-up. `partly`: when
    the time is up, measure what was done so far, for a peer that may not get far.
    """
    enqueued = one.call("bulk", jobs, shape)
    for _ in range(one.contender.workers):
        one.start(**({} if shape == "none" else {"BENCH_GROUPS": "1"}))
    began = one.wait(1, seconds_max)
    first, used, wrote = one.area.read(), one.seconds_used(), one.written()
    try:
        ended = one.wait(jobs, seconds_max)
    except Failed:
        if not partly:
            raise
        ended = one.tallied()
        return {"jobs_per_second": ended.calls / seconds_max, "jobs_left": float(jobs - ended.calls)}
    last, used_last, wrote_last = one.area.read(), one.seconds_used(), one.written()
    if ended.calls != jobs:
        raise Failed(f"{ended.calls} handler calls for {jobs} jobs")
    figures = {"jobs_per_second": jobs / (ended.last - ended.first), "enqueued_per_second": enqueued}
    between = ended.calls - began.calls
    if between > jobs // 2:  # else it ended before it could be observed
        figures |= costs(first, last, used_last - used, wrote_last - wrote, between)
    return figures


def sampled(one: Turn, jobs: int, *, seconds: float, warm: float, start_max: float = 90.0) -> dict[str, float]:
    """Enqueue, then the rate and the costs of a job during some seconds of work; the worker is killed afterwards.

    The seconds begin `warm` seconds after the first handler call, so that the rate includes neither the worker's start
    nor that of a second process that starts later. They end early if all jobs have been called.
    """
    one.call("bulk", jobs, "none")
    one.area.analyse()  # as autovacuum would within a minute: without it some plans of peers read all jobs
    for _ in range(one.contender.workers):
        one.start()
    one.wait(1, start_max)
    one.look(jobs, warm)
    began, began_at = one.tallied(), time.monotonic()
    if began.calls >= jobs:
        raise Failed(f"{one.contender.name}: all {jobs} jobs were done before the measurement began: give it more")
    first, used, wrote = one.area.read(), one.seconds_used(), one.written()
    ended, ended_at = one.look(jobs, seconds), time.monotonic()
    last, used_last, wrote_last = one.area.read(), one.seconds_used(), one.written()
    one.kill()
    calls = ended.calls - began.calls
    if not calls:
        raise Failed(f"{one.contender.name}: no job in {seconds:.0f} s: {one.said()}")
    lasted = (ended.last if ended.calls >= jobs else ended_at) - began_at
    return {"jobs_per_second": calls / lasted} | costs(first, last, used_last - used, wrote_last - wrote, calls)


def costs(first: Reading, last: Reading, used: float, wrote: int, jobs: int) -> dict[str, float]:
    store = Reading(*(after - before for before, after in zip(first, last, strict=True)))
    return {
        "worker_us": used / jobs * 1e6,
        "server_us": store.server_seconds / jobs * 1e6,
        "calls": store.calls / jobs,
        "bytes": (store.bytes or wrote) / jobs,
    }
