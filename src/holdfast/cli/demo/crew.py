"""The demo's worker processes: real ones, started, killed and stopped.

Used by the stage. Each is `holdfast work` in a process of its own; its output goes to a file beside the store. Ends
only processes it started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from .journal import HAND_VARIABLE, Journal
from .scene import JOURNAL_VARIABLE

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
