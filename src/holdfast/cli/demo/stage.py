"""The demo's plot: enqueue, two workers, one killed in mid-job, recovery, a poison job that dies and dies again.

Run by the demo command. Acts and reads only through the public API: which worker to kill is chosen from the store, and
the verdict is computed from a dump of the store and the handlers' journal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...app import Holdfast
from ...job import Job
from ...lifecycle import State
from ...records import WorkerRecord
from .journal import HAND_VARIABLE, Journal
from .scene import JOURNAL_VARIABLE, QUEUE, handle, harbour, read_chart, roll_call
from .screen import SHIPS, STEPS, Frame, Happening, StepView, WorkerView
from .verdict import Plan, Verdict, verdict_of

LEASE_SECONDS = 3.0
TICK_SECONDS = 0.1
KILL_AFTER_SECONDS = 4.0  # of work: by then every ship has steps behind it and steps ahead
MID_JOB_SECONDS = 0.15  # a job that has run this long, and has this long to go, counts as mid-job
GIVE_UP_SECONDS = 60.0
DEATHS = 2
REPEATS = 3


class Stage:
    """One run of the demo in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{quote((directory / 'demo.db').as_posix())}"
        self.journal = Journal(directory / "journal.jsonl")
        self.hands: list[Hand] = []
        self.happenings: list[Happening] = []
        self.elapsed = 0.0
        self._began = time.monotonic()
        self._first_run: float | None = None
        self._victims: dict[str, str] = {}  # job id → its ship and step, until it runs again
        self._recovered = False
        self._deaths_seen = 0
        self._plan: Plan | None = None

    def play(self, show: Callable[[Frame], None]) -> Verdict:
        """Play it to the end, showing every frame; returns the verdict."""
        with harbour(self.url) as app:
            try:
                plan = self._plan = self._enqueue(app)
                self.hands = [Hand(letter, self.url, self.directory, LEASE_SECONDS) for letter in "AB"]
                self._say(f"two workers start: pids {', '.join(str(hand.pid) for hand in self.hands)}")
                for frame in self._frames(app):
                    show(frame)
            finally:
                self._stop()
            dump = app._dump()
        return verdict_of(dump, self.journal.read(), plan)

    # ------------------------------------------------------------------ setup

    def _enqueue(self, app: Holdfast) -> Plan:
        ships: dict[str, tuple[str, ...]] = {}
        calls = []
        for place, ship in enumerate(SHIPS):
            own = [handle.bind(ship, step, 0.6 + 0.2 * ((place + turn) % 4)) for turn, step in enumerate(STEPS)]
            ships[ship] = tuple(call.id for call in own)
            calls += own
        app.enqueue_many(calls)
        self._say(f"{len(calls)} jobs enqueued: {len(SHIPS)} ships (groups) of {len(STEPS)} steps, in order")
        call = roll_call.bind()
        for _ in range(REPEATS):
            app.enqueue(call)
        self._say(f"the roll call is enqueued {REPEATS} times under one id")
        poison = app.enqueue(read_chart.bind("the old chart"))
        return Plan(ships=ships, repeated=call.id, poison=poison.id, deaths=DEATHS)

    # ------------------------------------------------------------------ the acts

    def _frames(self, app: Holdfast) -> Iterator[Frame]:
        """One frame per tick, until everything is done, every worker is gone, or it takes far too long."""
        while True:
            self.elapsed = time.monotonic() - self._began
            jobs = {job.id: job for job in app.jobs(queue=QUEUE)}
            workers = {worker.id: worker for worker in app.workers()}
            self._kill_one(app, jobs, workers)
            self._watch_recovery(jobs, workers)
            over = self._watch_poison(app, jobs) and self._all_done(jobs)
            yield self._frame(jobs, workers)
            if over:
                self._say("everything is done; the last worker is asked to stop", "good")
                self._stop()
                yield self._frame(jobs, {})
                return
            if self.elapsed > GIVE_UP_SECONDS or all(hand.ended for hand in self.hands):
                self._say("gave up: the workers did not get it done", "bad")
                yield self._frame(jobs, workers)
                return
            time.sleep(TICK_SECONDS)

    def _kill_one(self, app: Holdfast, jobs: dict[str, Job[Any]], workers: dict[str, WorkerRecord]) -> None:
        """After a while, SIGKILL a worker that, according to the store, is in the middle of a ship's step."""
        if self._victims or self._recovered:
            return
        running = [job for job in jobs.values() if job.state is State.RUNNING and job.group is not None]
        if running and self._first_run is None:
            self._first_run = self.elapsed
        if self._first_run is None or self.elapsed < self._first_run + KILL_AFTER_SECONDS:
            return
        hands = {hand.pid: hand for hand in self.hands if not hand.ended}
        for job in filter(_is_mid_job, running):
            worker = workers.get(job.worker or "")
            hand = hands.get(worker.pid) if worker is not None else None
            if hand is not None:
                hand.kill(self.journal)
                held = app.jobs(state="running", worker=job.worker)  # read again: the dead worker keeps its leases
                self._victims = {one.id: _told(one) for one in held if one.group is not None}
                told = ", ".join(self._victims.values())
                self._say(f"SIGKILL for worker {hand.letter} in mid-job: {told}", "bad")
                return

    def _watch_recovery(self, jobs: dict[str, Job[Any]], workers: dict[str, WorkerRecord]) -> None:
        """Report when the dead worker's leases expired, and when its jobs run again."""
        if not self._victims:
            return
        if not self._recovered and all(_stalls(jobs[victim]) for victim in self._victims):
            self._recovered = True
            late = time.monotonic() - max(hand.killed_at or 0.0 for hand in self.hands)
            self._say(f"lease ran out {late:.1f} s after the kill: its jobs are back in play", "good")
        for victim, told in list(self._victims.items()):
            job = jobs[victim]
            if _stalls(job) and job.state in (State.RUNNING, State.SUCCEEDED):
                del self._victims[victim]
                letter = self._letters(workers).get(job.worker or "")
                by = f" on worker {letter}" if letter else ""
                self._say(f"{told} runs again{by}, with a higher fence", "good")

    def _watch_poison(self, app: Holdfast, jobs: dict[str, Job[Any]]) -> bool:
        """Revive the poison job once; True when it has died as often as it should."""
        assert self._plan is not None  # noqa: S101 - set before the first frame
        poison = jobs[self._plan.poison]
        if poison.state is State.DEAD:
            letter = app.dead.get(poison.id)
            if letter.failure_count > self._deaths_seen:
                self._deaths_seen = letter.failure_count
                tail = "one dead letter" if letter.failure_count == 1 else "still one letter"
                self._say(f"the chart failed {poison.failures} times and is dead: {tail}, count {letter.failure_count}")
            if self._deaths_seen < DEATHS and self._recovered:
                app.dead.revive(poison.id)
                self._say("the dead letter is revived, with fresh retries")
        return self._deaths_seen >= DEATHS and poison.state is State.DEAD

    def _all_done(self, jobs: dict[str, Job[Any]]) -> bool:
        return all(job.state.finished for job in jobs.values())

    def _stop(self) -> None:
        for hand in self.hands:
            hand.stop()

    # ------------------------------------------------------------------ frames

    def _say(self, text: str, kind: str = "note") -> None:
        self.elapsed = time.monotonic() - self._began
        self.happenings.append(Happening(at=self.elapsed, text=text, kind=kind))

    def _letters(self, workers: dict[str, WorkerRecord]) -> dict[str, str]:
        """Worker id → the letter we gave its process."""
        by_pid = {hand.pid: hand.letter for hand in self.hands}
        return {worker.id: by_pid.get(worker.pid, "?") for worker in workers.values()}

    def _frame(self, jobs: dict[str, Job[Any]], workers: dict[str, WorkerRecord]) -> Frame:
        assert self._plan is not None  # noqa: S101 - set before the first frame
        letters = self._letters(workers)
        killed = {hand.letter for hand in self.hands if hand.killed_at is not None}
        ships = {
            ship: [_step_view(jobs[id], name, letters, killed) for id, name in zip(ids, STEPS, strict=True)]
            for ship, ids in self._plan.ships.items()
        }
        steps = [jobs[id] for ids in self._plan.ships.values() for id in ids]
        return Frame(
            elapsed=self.elapsed,
            lease=LEASE_SECONDS,
            ships=ships,
            workers=[self._worker_view(hand, workers) for hand in self.hands],
            poison=_poison_line(jobs[self._plan.poison], self._deaths_seen),
            happenings=tuple(self.happenings),
            done=sum(job.state is State.SUCCEEDED for job in steps),
            total=len(steps),
        )

    def _worker_view(self, hand: Hand, workers: dict[str, WorkerRecord]) -> WorkerView:
        record = next((worker for worker in workers.values() if worker.pid == hand.pid), None)
        return WorkerView(
            letter=hand.letter,
            pid=hand.pid,
            busy=record.running if record is not None else 0,
            slots=SLOTS,
            killed_ago=None if hand.killed_at is None else time.monotonic() - hand.killed_at,
            stopped=hand.ended and hand.killed_at is None,
        )


def _is_mid_job(job: Job[Any]) -> bool:
    """Has certainly begun, and will not end while we decide."""
    if job.started_at is None:
        return False
    ran = time.time() - job.started_at.timestamp()
    return MID_JOB_SECONDS < ran < float(job.args["seconds"]) - MID_JOB_SECONDS


def _told(job: Job[Any]) -> str:
    return f"{job.args.get('ship')}/{job.args.get('step')}"


def _stalls(job: Job[Any]) -> int:
    return job.stalls + job.shared_stalls


def _step_view(job: Job[Any], name: str, letters: dict[str, str], killed: set[str]) -> StepView:
    letter = letters.get(job.worker or "", "") if job.state is State.RUNNING else ""
    return StepView(name=name, state=job.state, worker=letter, orphaned=letter in killed, again=_stalls(job) > 0)


def _poison_line(poison: Job[Any], deaths: int) -> str:
    if poison.state is State.DEAD:
        return f"dead: one letter, count {deaths}"
    revived = ", revived" if deaths else ""
    if poison.state is State.RUNNING:
        return f"attempt {poison.attempts + 1} runs{revived}"
    if poison.failures:
        return f"failed {poison.failures}×, backing off{revived}"
    return f"{poison.state.value}{revived}"


# ----------------------------------------------------------------------------------------------------------------------
# The demo's worker processes: real ones, started, killed and stopped. Each is `holdfast work` in a process of its own;
# its output goes to a file beside the store. Ends only processes it started.


STOP_SECONDS_MAX = 5.0
DEAD_SECONDS_MAX = 3.0  # from a worker's death to that of its runners, which the guard kills
SLOTS = 2


class Hand:
    """One worker process."""

    def __init__(self, letter: str, url: str, directory: Path, lease: float) -> None:
        self.letter = letter
        self.killed_at: float | None = None
        self.log = directory / f"worker-{letter}.log"
        command = [sys.executable, "-m", "holdfast.cli", "work", "holdfast.cli.demo.scene:app", "--lease", f"{lease}s"]
        environment = {
            **os.environ,
            "HOLDFAST_URL": url,
            JOURNAL_VARIABLE: str(directory / "journal.jsonl"),
            HAND_VARIABLE: letter,
        }
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, "--runners", "1", "--slots", str(SLOTS), "--grace", "2s"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C goes to the stage, which then stops its workers in order
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self, journal: Journal) -> None:
        """SIGKILL: no clean-up. Recorded once keeper and runner are really gone."""
        self.process.kill()
        self.process.wait()
        self.killed_at = time.monotonic()
        for pid in {entry.pid for entry in journal.read() if entry.hand == self.letter}:
            if gone_within(pid, DEAD_SECONDS_MAX):
                journal.write("killed", pid=pid)

    def stop(self) -> None:
        """Ask it to stop; kill it after a while."""
        if self.ended:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def gone_within(pid: int, seconds: float) -> bool:
    """Whether a process that is not our child ends within this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False
