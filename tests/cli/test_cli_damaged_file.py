"""Commands on a SQLite file with damaged rows: they name id and field, keep their exit codes and show no traceback."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast

VICTIM = "WHERE id = 'victim'"
# What is done to the file, and the job and field that must be named.
DAMAGES = {
    "state": (f"UPDATE holdfast_jobs SET state = 'limbo' {VICTIM}", "victim", "state"),
    "errors": (f"UPDATE holdfast_jobs SET errors = x'ff' {VICTIM}", "victim", "errors"),
    "revival": (f"UPDATE holdfast_jobs SET revival = CAST('[5]' AS BLOB) {VICTIM}", "victim", "revival"),
    "time": (f"UPDATE holdfast_jobs SET created_at = 1e300 {VICTIM}", "victim", "created_at"),
    "text": (f"UPDATE holdfast_jobs SET task = CAST(x'ff61' AS TEXT) {VICTIM}", "victim", "task"),
    "letter": ("UPDATE holdfast_letters SET error = x'ff', history = x'ff'", "buried", "error"),
}
LOOKS = (["jobs"], ["job", "good"], ["job", "victim"], ["explain", "victim"], ["explain", "good"], ["stats"],
         ["queues"], ["dead", "ls"], ["dead", "show", "buried"], ["tasks"], ["workers"])  # fmt: skip

Damage = Callable[[str], None]


@pytest.fixture
def damage(shell: Shell, tmp_path: Path) -> Damage:
    """Spoils a row of a store that has two jobs and a dead letter."""
    with Holdfast(shell.url) as app:
        for name in ("good", "victim"):
            app.named("t").using(id=name).enqueue(1)
        app.bury(app.named("t").using(id="buried").enqueue(1))

    def spoil(statement: str) -> None:
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        assert connection.execute(statement).rowcount == 1
        connection.close()

    return spoil


@pytest.mark.parametrize("kind", DAMAGES)
def test_audit_and_doctor_name_id_and_field_and_say_1(kind: str, shell: Shell, damage: Damage) -> None:
    statement, job_id, field = DAMAGES[kind]
    damage(statement)
    found = [one for one in shell.json("audit", code=1)["violations"] if one["rule"] == "readable"]
    assert any(one["job_id"] == job_id and field in one["text"] for one in found), found
    told = shell("audit", code=1).output
    assert job_id in told and field in told
    [rows] = [one for one in shell.json("doctor", code=1)["findings"] if one["about"] == "rows"]
    assert rows["verdict"] == "wrong"
    told = shell("doctor", code=1).output
    assert job_id in told and field in told


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_list_goes_on_past_the_damaged_row_and_says_0(kind: str, shell: Shell, damage: Damage) -> None:
    statement, job_id, field = DAMAGES[kind]
    damage(statement)
    for words in LOOKS:
        assert "unexpected" not in shell(*words).output
        shell.json(*words)
    jobs = {one["id"]: one for one in shell.json("jobs")["jobs"]}
    assert set(jobs) >= {"good", "victim"}
    if job_id == "victim":
        assert jobs["victim"]["unreadable"] == [field]
        assert f"cannot be read: {field}" in shell("jobs").output
