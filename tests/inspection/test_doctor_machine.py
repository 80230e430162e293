"""The doctor on machines that lack something: each lack is found, alone, and a sound machine has none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.inspection import machine as tried
from holdfast.inspection.machine import DRIVERS, Finding, Machine, judge_machine, look_at_machine

SOUND = Machine(
    platform="linux",
    system="Linux 6.1",
    python=(3, 12, 1),
    packages={"msgspec": "1", "click": "8", "rich": "13", "psycopg": "3", "redis": "5", "hiredis": "3", "uvloop": "1"},
    subreaper=True,
    parent_death=True,
    pidfd=True,
    timers=True,
    proc=True,
    children=True,
    limits={"memory": None, "cpu": None, "file": None},
    start_seconds=0.05,
    pid=100,
    pid_1="systemd",
)


def without(*names: str) -> dict[str, str | None]:
    return {name: None if name in names else version for name, version in SOUND.packages.items()}


def verdicts(machine: Machine, scheme: str = "") -> dict[str, str]:
    return {one.about: one.verdict for one in judge_machine(machine, scheme) if one.verdict != "fine"}


def test_a_sound_machine_is_fine() -> None:
    for scheme in ("", "sqlite", *DRIVERS):
        assert verdicts(SOUND, scheme) == {}
    assert len({one.about for one in judge_machine(SOUND)}) == 7


@pytest.mark.parametrize(
    ("lack", "scheme", "found"),
    [
        ({"python": (3, 10, 9)}, "", {"python": "wrong"}),
        ({"packages": without("msgspec")}, "", {"packages": "wrong"}),
        ({"packages": without("psycopg")}, "postgresql", {"packages": "wrong"}),
        ({"packages": without("psycopg", "uvloop")}, "redis", {}),
        ({"packages": without("hiredis")}, "redis", {"packages": "wrong"}),
        ({"packages": without("redis")}, "redis+cluster", {"packages": "wrong"}),
        ({"subreaper": False}, "", {"killing": "wrong"}),
        ({"parent_death": False}, "", {"killing": "wrong"}),
        ({"proc": False}, "", {"killing": "wrong"}),
        ({"pidfd": False}, "", {}),  # nothing here needs it
        ({"timers": False}, "", {"deadline": "wrong"}),
        ({"children": False}, "", {"limits": "note"}),
        ({"limits": {"cpu": None, "file": None}}, "", {"limits": "note"}),
        ({"limits": {"memory": 1 << 30, "cpu": None, "file": None}}, "", {"limits": "note"}),
        ({"start_error": "Resource temporarily unavailable"}, "", {"processes": "wrong"}),
        ({"start_seconds": 9.0}, "", {"processes": "note"}),
        ({"contained": True, "pid_1": "sh"}, "", {"container": "note"}),
        ({"contained": True, "pid_1": "tini"}, "", {}),
        ({"contained": True, "pid_1": "sh", "pid": 1}, "", {}),
        ({"platform": "darwin", "timers": False, "subreaper": False, "proc": False}, "", {"killing": "note"}),
        ({"platform": "win32", "limits": {}}, "", {"killing": "wrong", "limits": "note"}),
    ],
)
def test_each_lack_is_found_and_nothing_else(lack: dict[str, Any], scheme: str, found: dict[str, str]) -> None:
    assert verdicts(replace(SOUND, **lack), scheme) == found


def finding(machine: Machine, about: str) -> Finding:
    return next(one for one in judge_machine(machine) if one.about == about)


def test_what_is_wrong_comes_with_a_next_step() -> None:
    broken = replace(
        SOUND, python=(3, 9, 0), packages=without("click"), subreaper=False, timers=False, start_error="no room"
    )
    bad = [one for one in judge_machine(broken) if one.verdict == "wrong"]
    assert len(bad) == 5
    assert all(one.text and one.next for one in bad)
    assert "no room" in finding(broken, "processes").text
    assert finding(broken, "killing").facts["subreaper"] is False


def test_this_machine_is_looked_at_for_true() -> None:
    found = look_at_machine()
    assert found.platform == sys.platform
    assert found.python == sys.version_info[:3]
    assert found.packages["msgspec"] is not None
    assert found.start_error == ""
    if sys.platform == "linux":
        assert found.proc and found.pid_1
        assert set(found.limits) == {"memory", "cpu", "file"}


def test_a_process_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **ways: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert "temporarily unavailable" in look_at_machine().start_error
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert look_at_machine().start_error == "it ended with 1"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_an_option_the_kernel_does_not_know_is_not_settable() -> None:
    assert not tried._settable(9999, 9999)
    assert tried._settable(tried._GET_PDEATHSIG, tried._SET_PDEATHSIG)


def test_limits_of_this_user_are_seen() -> None:
    resource = pytest.importorskip("resource")
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from holdfast.inspection.machine import _limits; print(_limits()['file'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert resource and done.stdout.strip() == str(1 << 20)
