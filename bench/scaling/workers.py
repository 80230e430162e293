"""Real workers on one store: `holdfast work`, several at once, no-op jobs, everything on this machine.

Run by `bench/scale measure`. The jobs are enqueued first, in a paused queue; the workers start and are idle; then the
queue is resumed. Recorded are the processor seconds per job of each part, the calls per job, and how much of the
machine other work used meanwhile: on a shared machine elapsed time alone says little.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast

from .measuring import disk
from .places import ClusterPlace, Place, SqlitePlace
from .watching import Watch, machine_seconds, moment_of, worker_seconds

START_SECONDS_MAX = 60.0
WORK_SECONDS_MAX = 240.0
SETTLE_SECONDS = 1.5  # until newly started workers are idle
LOOK_SECONDS = 0.03
MIDDLE = (0.1, 0.8)  # shares of the jobs between which all workers are busy

APP = '''
"""No-op jobs that are counted; each runner tells its count in a file of its own, thirty times a second."""
import asyncio, json, os, random, threading, time
from pathlib import Path
from holdfast import Holdfast

HERE = Path(__file__).parent
app = Holdfast()
app.queue("scale", shards={shards})
done = 0


@app.task(name="nothing", queue="scale")
async def nothing(number: int) -> None:
    global done
    if {handler}:
        await asyncio.sleep(random.expovariate(1 / {handler}))
    done += 1


def tell() -> None:
    path = HERE / f"count-{{os.getpid()}}"
    while True:
        path.with_suffix(".new").write_text(json.dumps([time.perf_counter(), done]))
        path.with_suffix(".new").rename(path)
        time.sleep(0.03)


threading.Thread(target=tell, daemon=True).start()
'''


@dataclass(frozen=True)
class Setting:
    """How many workers with how many runners each, and what they have to do."""

    workers: int = 1
    runners: int = 1
    jobs: int = 50_000
    shards: int = 1
    slots: int = 400
    handler: float = 0.0  # seconds that a job waits, on average

    @property
    def name(self) -> str:
        words = [f"{self.workers} × {self.runners}"]
        words += [f"{self.shards} shards"] if self.shards > 1 else []
        words += [f"{1000 * self.handler:g} ms"] if self.handler else []
        return ", ".join(words)


ONE_STORE = [
    *(Setting(workers=workers, runners=runners) for workers, runners in ((1, 1), (1, 2), (2, 1), (4, 1))),
    *(Setting(workers=workers, jobs=3000 * workers, slots=100, handler=0.1) for workers in (1, 2, 4)),
]
SHARDED = [Setting(workers=workers, shards=shards) for workers, shards in ((1, 3), (1, 6), (2, 6), (4, 6))]


def runs(place: Place, settings: list[Setting], rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every setting in turn, round after round; of each, the round in which other work used the machine least."""
    found: list[list[dict[str, Any]]] = [[] for _ in settings]
    for number in range(rounds):
        for setting, got in zip(settings, found, strict=True):
            got.append(run(place, setting))
            say(f"workers: {setting.name}, round {number + 1}")
    calmest = [min(got, key=lambda one: one["others_cores"]) for got in found]
    return [{**asdict(setting), **one} for setting, one in zip(settings, calmest, strict=True)]


def run(place: Place, setting: Setting) -> dict[str, Any]:
    """One run: what each part used per job."""
    sync = disk(50)["sync_p50"]
    url = place.fresh()
    with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as name, Holdfast(url) as app:
        folder = Path(name)
        (folder / "scale_app.py").write_text(APP.format(shards=setting.shards, handler=setting.handler))
        app.queue("scale", shards=setting.shards)
        app.open()
        app.pause(queue="scale")
        task = app.task_by_name("nothing", queue="scale")
        app.enqueue_many(task.bind(number=number) for number in range(setting.jobs))
        with _working(folder, url, setting) as pids:
            _wait(lambda: len(_counts(folder)) == setting.workers * setting.runners, START_SECONDS_MAX)
            time.sleep(SETTLE_SECONDS)
            calls = place.calls()
            with Watch(lambda: _read(place, pids)) as watch:
                time.sleep(2 * LOOK_SECONDS)
                app.resume(queue="scale")
                counts = _followed(folder, setting.jobs)
                time.sleep(2 * LOOK_SECONDS)
            calls = place.calls() - calls
        return {"sync": sync, **_figures(place, setting, watch, counts, calls)}


def _figures(
    place: Place, setting: Setting, watch: Watch, counts: list[tuple[float, int]], calls: int
) -> dict[str, Any]:
    first, last = (moment_of(counts, share * setting.jobs) for share in MIDDLE)
    span, jobs = last - first, (MIDDLE[1] - MIDDLE[0]) * setting.jobs
    used = watch.between(first, last)
    machine = used.pop("machine")
    nodes = [used.pop(role) for role in sorted(used) if role.startswith("node")]
    ours = sum(used.values())
    if isinstance(place, SqlitePlace):
        used["server"] = used.pop("keeper_threads")
    return {
        "jobs_per_second": jobs / span,
        "others_cores": max(0.0, (machine - ours) / span),
        "cores_used": ours / span,
        "calls_per_job": calls / setting.jobs,
        "cpu": {role: seconds / jobs * 1e6 for role, seconds in sorted(used.items())},
        "nodes": sorted((node / sum(nodes) for node in nodes), reverse=True),
    }


def _read(place: Place, pids: list[int]) -> dict[str, float]:
    parts = [worker_seconds(pid) for pid in pids]
    total = {role: sum(part[role] for part in parts) for role in parts[0]}
    nodes = {}
    if isinstance(place, ClusterPlace):
        nodes = {f"node{number}": seconds for number, seconds in enumerate(place.seconds_by_node())}
    server = 0.0 if isinstance(place, SqlitePlace) else sum(nodes.values()) or place.seconds()
    return {**total, **nodes, "server": server, **machine_seconds()}


@contextlib.contextmanager
def _working(folder: Path, url: str, setting: Setting) -> Iterator[list[int]]:
    words = ["work", "scale_app:app", "--app-dir", str(folder), "--slots", str(setting.slots),
             "--runners", str(setting.runners)]  # fmt: skip
    processes = []
    try:
        for number in range(setting.workers):
            with (folder / f"log-{number}").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "holdfast.cli", *words],
                        stdout=log,
                        stderr=log,
                        env={**os.environ, "HOLDFAST_URL": url},
                    )
                )
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(START_SECONDS_MAX)


def _counts(folder: Path) -> list[tuple[float, int]]:
    """For each runner: when it last reported how many jobs it has done, and how many."""
    return [tuple(json.loads(path.read_text())) for path in folder.glob("count-*") if not path.suffix]


def _followed(folder: Path, jobs: int) -> list[tuple[float, int]]:
    """Times, and how many jobs were done by then, until all are done."""
    seen: list[tuple[float, int]] = []

    def all_done() -> bool:
        counts = _counts(folder)
        seen.append((statistics.mean(when for when, _ in counts), sum(done for _, done in counts)))
        return seen[-1][1] >= jobs

    _wait(all_done, WORK_SECONDS_MAX)
    return seen


def _wait(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing came of it within {seconds:g} s; is the machine too busy?")
        time.sleep(LOOK_SECONDS)
