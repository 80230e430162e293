"""The soak's judge sees each fault that is planted, and nothing where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.soak.jobs import is_dying
from tests.soak.verdict import Verdict, gap_without, judge


def start(at: float, job: str, kind: str = "plain", **facts: Any) -> dict[str, Any]:
    return {"at": at, "what": "start", "kind": kind, "job": job, "number": 0, "group": None, **facts}


def verdict(*lines: dict[str, Any], **facts: Any) -> Verdict:
    words = {"acknowledged": ["a"], "unfinished": [], "violations": 0, "outages": [], "standstill_seconds": 10.0}
    return judge(list(lines), **{**words, **facts})


def test_a_sound_run_holds() -> None:
    lines = [start(1.0, "a"), start(2.0, "b", "once"), start(3.0, "c", "strict", group="g", number=1)]
    assert verdict(*lines, start(4.0, "c", "strict", group="g", number=1)).holds


def test_no_start_at_all_does_not_hold() -> None:
    assert not verdict().holds


FAULTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "an overlap": ([start(1.0, "a"), {"at": 2.0, "what": "overlap", "job": "a"}], {}, "overlapped"),
    "an at-most-once job twice": ([start(1.0, "a", "once"), start(2.0, "a", "once")], {}, "doubled"),
    "a lost job": ([start(1.0, "b")], {"unfinished": ["a"]}, "lost"),
    "a violation": ([start(1.0, "a")], {"violations": 1}, "violations"),
    "a standstill": ([start(1.0, "a"), start(12.0, "b")], {}, "standstills"),
    "broken order": (
        [start(1.0, "b", "strict", group="g", number=2), start(2.0, "a", "strict", group="g", number=1)],
        {},
        "disordered",
    ),
}


def link(at: float, number: int, what: str = "start") -> dict[str, Any]:
    return {"at": at, "what": what, "kind": "chain", "job": f"job {number}", "number": number, "group": "g"}


FAULTS |= {
    "a job of a chain left out": ([link(1.0, 1), link(2.0, 1, "end"), link(3.0, 3)], {}, "skipped"),
    "a chain that went on past a failure": ([link(1.0, 1), link(2.0, 2)], {}, "skipped"),
    "… past one that had succeeded before a crash": (
        [link(1.0, 1), link(2.0, 1, "end"), link(3.0, 1), link(4.0, 2)],
        {},
        "skipped",
    ),
}


def test_a_chain_may_go_back_after_a_crash() -> None:
    once = [link(1.0, 1), link(2.0, 1, "end"), link(3.0, 2), link(4.0, 2, "end"), link(5.0, 3)]
    assert verdict(*once, *(line | {"at": line["at"] + 5.0} for line in once)).holds


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str) -> None:
    lines, facts, name = FAULTS[fault]
    found = verdict(*lines, **facts)
    assert not found.holds
    assert getattr(found, name) == 1


def test_time_in_which_nobody_could_start_a_job_is_no_standstill() -> None:
    lines = [start(1.0, "a"), start(20.0, "b")]
    assert verdict(*lines, outages=[(5.0, 10.0), (8.0, 16.0)]).holds
    assert gap_without(1.0, 20.0, [(5.0, 10.0), (8.0, 16.0)]) == 8.0


def test_a_stopped_process_lives_and_a_killed_one_does_not() -> None:
    process = subprocess.Popen(["sleep", "600"])
    os.kill(process.pid, signal.SIGSTOP)
    assert not is_dying(f"{process.pid:<20}")
    process.kill()
    assert is_dying(f"{process.pid:<20}")
    process.wait()
    assert is_dying(f"{process.pid:<20}")
