"""Soak one store, or all of them at once: `python -m tests.soak --store all --minutes 30 --load 20`.

Real workers, real servers, a producer, and faults one after another: workers killed, stopped and ended, servers killed,
stopped and changed, replies cut off and held back, rules changed. Then all is calm, the store is drained and the
handlers' journals are judged. Ends with one line per store and exit code 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.soak.stores import STORES, Store
from tests.soak.verdict import Verdict, judge

ROOT = Path(__file__).resolve().parents[2]
LEASE_SECONDS = 6.0
WORKERS = 3
BACKLOG = 300  # unfinished jobs that the producer keeps
GROUPS = 12
DRAIN_SECONDS_MAX = 600.0
AUDIT_SECONDS_MAX = 300.0


class Soak:
    """Run one store for this long."""

    def __init__(self, store: Store, folder: Path, seconds: float) -> None:
        self.store, self.folder, self.seconds = store, folder, seconds
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.acknowledged: list[str] = []
        self.counts: dict[str, int] = {}
        self.links: dict[str, int] = {}  # how many jobs each group of chains has
        self.over = threading.Event()
        for name in ("journals", "locks"):
            (folder / name).mkdir()
        self.environment = {
            **os.environ,
            "HOLDFAST_URL": store.url,
            "SOAK_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
        }

    # ------------------------------------------------------------------ workers

    def start(self, place: int, *words: str) -> None:
        command = [sys.executable, "-m", "holdfast.cli", "work", "tests.soak.jobs:app", "--app-dir", str(ROOT)]
        command += ["--lease", f"{LEASE_SECONDS}s", "--grace", "3s", "--runners", "2"]
        command += ["--slots", str(random.choice([1, 20, 100])), *words]
        with (self.folder / f"worker-{place}.log").open("ab") as log:
            self.workers[place] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def _family(self, pid: int) -> list[int]:
        found = [pid]
        for parent in found:
            with contextlib.suppress(OSError):
                found += [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        return found

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_worker(self) -> None:
        """A whole worker dies at once."""
        place = random.choice(list(self.workers))
        self._signal(self._family(self.workers[place].pid), signal.SIGKILL)
        self.workers[place].wait(30.0)
        self.start(place)

    def kill_one(self) -> None:
        """A keeper, guard or runner dies."""
        place = random.choice(list(self.workers))
        self._signal([random.choice(self._family(self.workers[place].pid))], signal.SIGKILL)

    def stop_for_a_while(self) -> None:
        """A worker, or a part of it, is stopped for up to three leases."""
        family = self._family(self.workers[random.choice(list(self.workers))].pid)
        stopped = family if random.random() < 0.5 else [random.choice(family)]
        self._signal(stopped, signal.SIGSTOP)
        with self.store.outage() if self.store.is_held_by(stopped) else contextlib.nullcontext():
            time.sleep(random.uniform(0.1, 3 * LEASE_SECONDS))
            self._signal(stopped, signal.SIGCONT)

    def end_worker(self) -> None:
        place = random.choice(list(self.workers))
        self.workers[place].send_signal(random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))

    def restart_ended(self) -> None:
        for place, worker in list(self.workers.items()):
            if worker.poll() is not None:
                self.start(place)

    # ------------------------------------------------------------------ producing and steering

    def produce(self, app: Any, tasks: dict[str, Any]) -> None:
        from holdfast.errors import HoldfastError

        number = 0
        while not self.over.is_set():
            try:
                unfinished = sum(
                    count
                    for counts in app.counts().values()
                    for state, count in counts.items()
                    if str(state) in ("scheduled", "waiting", "ready", "running")
                )
                if unfinished >= BACKLOG:
                    self.over.wait(0.2)
                    continue
                for _ in range(20):
                    number += 1
                    self._enqueue(app, tasks, number)
                for _ in range(3):
                    self._burst(app)
            except HoldfastError:
                self.over.wait(0.2)

    def _enqueue(self, app: Any, tasks: dict[str, Any], number: int) -> None:
        """One job, tried again with the same id until it is acknowledged: a group's order is that of its enqueues."""
        from holdfast.errors import HoldfastError

        kind = random.choice(list(tasks))
        grouped = kind in ("strict", "pairs")
        options = {"group": f"g{random.randrange(GROUPS)}"} if grouped else {}
        padding = "x" * random.choice([0, 0, 0, 0, 100, 10_000, 400_000])
        call = tasks[kind].options(**options).bind(number, padding)
        while not self.over.is_set():
            try:
                self.acknowledged.append(app.enqueue(call).id)
                return
            except HoldfastError:
                self.over.wait(0.1)

    def _burst(self, app: Any) -> None:
        """Many short jobs in one call, which is repeated until it is acknowledged."""
        from holdfast.errors import HoldfastError
        from tests.soak.jobs import BURST_MAX, BURSTS

        kind = random.choice(list(BURSTS))
        group = f"c{random.randrange(3 * GROUPS)}"
        first, count = self.links.get(group, 0), random.randint(1, BURST_MAX)
        options: dict[str, Any] = {} if kind == "gathered" else {"priority": random.choice([0, 0, 0, 5])}
        if kind in ("chain", "link"):
            options, self.links[group] = {"group": group}, first + count
        padding = "x" * random.choice([0, 0, 0, 20_000])
        calls = [
            BURSTS[kind].options(**options).bind(number=first + place, padding=padding) for place in range(1, count + 1)
        ]
        while not self.over.is_set():
            try:
                app.enqueue_many(calls)
                self.acknowledged += [call.id for call in calls]
                return
            except HoldfastError:
                self.over.wait(0.1)

    def steer(self) -> None:
        """Change a rule and change it back."""
        from holdfast import RESET
        from holdfast.errors import HoldfastError
        from tests.soak.jobs import app

        group, most = f"c{random.randrange(3 * GROUPS)}", random.randint(1, 10)
        steps: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (lambda: app.pause(task="thread", reason="soak"), lambda: app.resume(task="thread")),
            (lambda: app.pause(queue="chain", reason="soak"), lambda: app.resume(queue="chain")),
            (
                lambda: app.pause(queue="chain", group=group, reason="soak"),
                lambda: app.resume(queue="chain", group=group),
            ),
            (lambda: app.queues.limit("pairs", most), lambda: app.queues.limit("pairs", RESET)),
            (lambda: app.queues.limit("chain", most), lambda: app.queues.limit("chain", RESET)),
            (lambda: app.tasks.limit("brief", most), lambda: app.tasks.limit("brief", RESET)),
            (
                lambda: app.queues.limit("default", rate=f"{10 * most}/s"),
                lambda: app.queues.limit("default", rate=RESET),
            ),
        ]
        do, undo = random.choice(steps)
        with contextlib.suppress(HoldfastError):
            do()
        time.sleep(random.uniform(0.1, 2.0))
        for _ in range(100):
            with contextlib.suppress(HoldfastError):
                undo()
                break
            time.sleep(0.2)

    # ------------------------------------------------------------------ the whole

    def run(self) -> Verdict:
        os.environ.update(HOLDFAST_URL=self.store.url, SOAK_FOLDER=str(self.folder))
        from tests.soak import jobs

        producer = threading.Thread(target=self.produce, args=(jobs.app, jobs.TASKS), daemon=True)
        for place in range(WORKERS):
            self.start(place)
        producer.start()
        self._hurt()
        self.over.set()
        producer.join(60.0)
        self.store.calm()
        self.restart_ended()
        unfinished = self._drained(jobs.app)
        violations = self._violations()
        for text in violations:
            print(f"audit: {text}", file=sys.stderr)
        for worker in self.workers.values():
            self._signal([worker.pid], signal.SIGTERM)
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(60.0)
            self._signal(self._family(worker.pid), signal.SIGKILL)
        jobs.app.close()
        return judge(
            self._lines(),
            self.acknowledged,
            unfinished,
            len(violations),
            outages=self.store.outages,
            standstill_seconds=3 * LEASE_SECONDS,
        )

    def _hurt(self) -> None:
        ours: list[Callable[[], None]] = [self.kill_worker, self.kill_one, self.kill_one, self.stop_for_a_while]
        ours += [self.stop_for_a_while, self.end_worker, self.steer]
        end = time.monotonic() + self.seconds
        time.sleep(min(10.0, self.seconds / 10))
        while time.monotonic() < end:
            fault = random.choice([*ours, *self.store.faults()])
            name = fault.__name__.strip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            began = time.strftime("%X")
            fault()
            with (self.folder / "faults.log").open("a") as log:
                log.write(f"{began} to {time.strftime('%X')} {name}\n")
            self.restart_ended()
            time.sleep(random.uniform(0.0, 3.0))

    def _drained(self, app: Any) -> list[str]:
        """Wait until every acknowledged job has finished; returns those that have not."""
        from holdfast.errors import HoldfastError

        left, deadline = list(self.acknowledged), time.monotonic() + DRAIN_SECONDS_MAX
        while left and time.monotonic() < deadline:
            with contextlib.suppress(HoldfastError):
                left = [job_id for job_id in left if not app.job(job_id).state.finished]
            self.restart_ended()
            time.sleep(0.5)
        return left

    def _violations(self) -> list[str]:
        """What the audit finds. Reading a gigabyte takes long on a machine with so much else to do."""
        from holdfast import Holdfast

        joint = "&" if "?" in self.store.url else "?"
        with Holdfast(f"{self.store.url}{joint}call_timeout={AUDIT_SECONDS_MAX:g}") as auditor:
            return [violation.text for violation in auditor.audit().violations]

    def _lines(self) -> list[dict[str, Any]]:
        lines = []
        for journal in (self.folder / "journals").iterdir():
            for line in journal.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(line))
        return lines


def soak(name: str, minutes: float) -> int:
    """One store in this process; prints its verdict."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-soak-{name}-"))
    store = STORES[name](folder)
    run = Soak(store, folder, minutes * 60)
    try:
        verdict = run.run()
    finally:
        for worker in run.workers.values():
            run._signal(run._family(worker.pid), signal.SIGKILL)
        store.close()
    facts = {"store": name, "holds": verdict.holds, **msgspec.structs.asdict(verdict), "faults": run.counts}
    if store.proxies:
        facts |= {"cuts": sum(proxy.cuts for proxy in store.proxies), "held": sum(p.holds for p in store.proxies)}
    print(json.dumps(facts), flush=True)
    if not verdict.holds:
        print(f"kept for a look: {folder}", file=sys.stderr)
    return 0 if verdict.holds else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--store", choices=[*STORES, "all"], default="all")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=int, default=20, metavar="N", help="other programs that want the processor")
    parser.add_argument("--niceness", type=int, default=0, help="of those programs, 0 to 19")
    given = parser.parse_args()
    burner = ["nice", "-n", str(given.niceness), sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burner) for _ in range(given.load)]
    try:
        if given.store != "all":
            return soak(given.store, given.minutes)
        command = [sys.executable, "-m", "tests.soak", "--load", "0", "--minutes", str(given.minutes), "--store"]
        runs = [subprocess.Popen([*command, name], cwd=ROOT) for name in STORES]
        return max(run.wait() for run in runs)
    finally:
        for process in burners:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
