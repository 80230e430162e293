"""Kills workers and the store under flows and batches: `python -m tests.soak.flows --store redis --jobs 2000`.

Units of jobs (fan-ins, a batch that grows from within, durable steps, parents that die with children of every policy)
are enqueued while workers are killed with SIGKILL one after another, and the store now and then: a server or a node of
the cluster with SIGKILL, SQLite by killing everybody who has the file open. Then all is calm and the store is drained.
Every job must have come to the end that its place says, none may be missing and none there twice: so every join and
every callback was fired once. By the journal of the steps, none was called again after its result was stored. Prints
one line and ends with exit code 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from holdfast.errors import BackendError
from tests.servers import postgres, valkey, valkey_cluster
from tests.soak import flow_jobs

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
STORES = ("sqlite", "postgres", "redis", "cluster")
DRAIN_SECONDS_MAX = 300.0


Servers = Sequence[valkey.Server | postgres.Server]


class Killed:
    """One store, its workers, and what is killed."""

    def __init__(self, url: str, servers: Servers, is_back: Callable[[], None], seed: int) -> None:
        self.url, self._servers, self._is_back, self._dice = url, servers, is_back, random.Random(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self.kills = self.store_kills = 0
        self.app = flow_jobs.app
        self.app.configure(url=url)

    def start(self) -> None:
        while len(self._workers) < WORKERS:
            command = [sys.executable, "-m", "tests.soak.flow_jobs", self.url]
            self._workers.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))

    def kill_worker(self) -> None:
        victim = self._workers.pop(self._dice.randrange(len(self._workers)))
        victim.kill()
        victim.wait()
        self.kills += 1

    def kill_store(self) -> None:
        """A server; without one, all who write the file, at once."""
        if self._servers:
            server = self._dice.choice(self._servers)
            server.end(signal.SIGKILL)
            server.start()
            self._is_back()
        else:
            for worker in self._workers:
                worker.kill()
            for worker in self._workers:
                worker.wait()
            self._workers.clear()
        self.store_kills += 1

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self.app.close()

    # ------------------------------------------------------------------ the verdict

    def drained(self) -> bool:
        until = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < until:
            with contextlib.suppress(BackendError):
                if not list(self.app.jobs("state:scheduled,waiting,ready,running", limit=1)):
                    return True
            time.sleep(0.2)
        return False

    def found(self) -> Counter[tuple[str, str]]:
        return Counter((job.task, job.state.value) for job in self.app.jobs(limit=100_000))

    def wrong_steps(self) -> list[str]:
        """Jobs of which a step was not called, or called again after its result was stored."""
        called = flow_jobs.journal()
        jobs = [job.id for job in self.app.jobs("task:order", limit=100_000)]
        return [f"{job} called {called.get(job)}" for job in jobs if not flow_jobs.is_in_order(called.get(job, []))]

    def wrong_results(self) -> list[str]:
        """Joins that ran before their parents had ended, or without them."""
        parts = sum(range(flow_jobs.PARTS))
        wanted = {"total": parts, "last": parts, "callback": 2 * flow_jobs.LOADS}
        return [
            f"{job.id} ({job.task}) returned {job.value}"
            for job in self.app.jobs(limit=100_000)
            if job.task in wanted and job.state == "succeeded" and job.value != wanted[job.task]
        ]


@contextlib.contextmanager
def store_of(kind: str, folder: str) -> Iterator[tuple[str, Servers, Callable[[], None]]]:
    """Yields its URL, its servers, and what waits until all of them can be used again."""
    if kind == "redis":
        with contextlib.contextmanager(valkey.own_server)(appendfsync="always") as server:
            yield server.url(trust_restarts="true"), [server], lambda: None
    elif kind == "cluster":
        with contextlib.contextmanager(valkey_cluster.own_cluster)(appendfsync="always") as cluster:
            sound = partial(cluster.wait, cluster.is_sound, "a node to be back")
            yield f"{cluster.url()}&trust_restarts=true", cluster.primaries, sound
    elif kind == "postgres":
        with contextlib.contextmanager(postgres.own_server)(durable=True) as pg:
            yield pg.url(), [pg], lambda: None
    else:
        yield f"sqlite:///{folder}/jobs.db", [], lambda: None


def run(kind: str, jobs: int, kills: int, store_kills: int, pause: float, seed: int) -> tuple[bool, str]:
    """Returns whether all holds, and a line that says what was done."""
    units = -(-jobs // flow_jobs.UNIT_JOBS)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-flows-") as folder,
        patch.dict(os.environ, {flow_jobs.JOURNAL: f"{folder}/journal"}),
        store_of(kind, folder) as (url, servers, is_back),
    ):
        scene = Killed(url, servers, is_back, seed)
        try:
            stored = 0
            for step in range(max(kills, 1)):
                scene.start()
                while stored < units * (step + 1) // max(kills, 1):
                    flow_jobs.enqueue_unit()
                    stored += 1
                time.sleep(pause)
                scene.kill_worker()
                if step < kills and (step + 1) * store_kills // kills > scene.store_kills:
                    scene.kill_store()
            scene.start()
            is_drained = scene.drained()
            found, wrong = scene.found(), [*scene.wrong_results(), *scene.wrong_steps()]
            again = sum(map(len, flow_jobs.journal().values())) - len(flow_jobs.STEPS) * stored
            violations = scene.app.audit().violations
        finally:
            scene.close()
    wanted = {place: stored * number for place, number in flow_jobs.UNIT.items()}
    faults = [*([] if is_drained else ["not drained"]), *wrong, *map(str, violations)]
    for place in sorted(wanted.keys() | found.keys()):
        if found[place] != wanted.get(place, 0):
            faults.append(f"{' '.join(place)}: {found[place]} instead of {wanted.get(place, 0)}")
    killed = f"{scene.kills} workers and {scene.store_kills} stores killed"
    fired = f"{3 * stored} joins and {2 * stored} callbacks once each"
    seconds = time.monotonic() - began
    steps = f"{len(flow_jobs.STEPS) * stored} steps stored once each ({again} were called again before that)"
    line = f"{kind}: {sum(found.values())} jobs in {stored} units, {killed}, {fired}, {steps}, {seconds:.0f} s"
    return not faults, "\n".join([line, *faults[:20]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=[*STORES, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--store-kills", type=int, default=10)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sound = True
    for kind in STORES if given.store == "all" else [given.store]:
        holds, text = run(kind, given.jobs, given.kills, given.store_kills, given.pause, given.seed)
        print(text if holds else f"FAILED {text}", flush=True)
        sound = sound and holds
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
