"""`holdfast demo` from end to end: real processes, a real SIGKILL, and a verdict that holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.chaos


def test_the_demo_holds_and_tells_what_it_saw(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--json", "--keep", str(kept)],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["held"] is True
    assert set(document["checks"]) == {
        "nothing_lost",
        "nothing_overlapped",
        "order_kept",
        "repeats_made_one_job",
        "one_dead_letter",
        "audit_holds",
    }
    told = " ".join(happening["text"] for happening in document["happenings"])
    for part in ("SIGKILL for worker", "lease ran out", "runs again", "still one letter, count 2"):
        assert part in told
    journal = [json.loads(line) for line in (kept / "journal.jsonl").read_text().splitlines()]
    assert sum(entry["event"] == "killed" for entry in journal) == 1
    assert (kept / "demo.db").exists()


def test_the_demo_in_plain_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo"], capture_output=True, text=True, timeout=90, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "verdict: everything held" in lines
    assert "\x1b[" not in done.stdout
    assert list(tmp_path.iterdir()) == []
