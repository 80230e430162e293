"""`holdfast move`: its output and exit codes, and what the commands print on a store that was moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast, MoveRefused
from holdfast.mover import Mover


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new.db'}"


def test_everything_moves_and_the_old_store_says_where(shell: Shell, target: str) -> None:
    shell.job(id="j1", queue="mail", group="ann")
    shell.job(id="j2", delay=3600)
    result = shell("move", shell.url, target, "--yes")
    assert result.stdout.startswith("moved: 2 jobs, 0 dead letters")
    assert "carrying jobs" in result.stderr
    assert [job["id"] for job in shell.json("jobs", "--url", target)["jobs"]] == ["j2", "j1"]
    assert shell("audit", "--url", target).stdout.startswith("ok: ")
    assert "have moved to sqlite:///" in shell("stats").stdout
    assert shell.json("stats")["sealed"] == {"stage": "moved", "other": target}
    assert shell.json("stats", "--url", target)["sealed"] is None
    refused = ["enqueue send to=ann", "cancel j2", "run-now j2", "pause -q mail", "prune"]
    for line in refused:
        assert "new.db" in shell(*line.split(), code=1).stderr
    assert "was already moved" in shell("move", shell.url, target, "--yes").stdout


def test_one_document_on_stdout_and_progress_in_lines_on_stderr(shell: Shell, target: str) -> None:
    shell.job(id="j1")
    result = shell("move", shell.url, target, "--yes", "--json")
    document = json.loads(result.stdout)
    assert document["moved"] is True
    assert document["rows"]["jobs"] == 1
    assert len(document["digest"]) == 64
    steps = [json.loads(line) for line in result.stderr.splitlines()]
    assert [step["step"] for step in steps if step["done"] == step["total"]] == ["seal", "carry", "compare", "open"]


def test_a_dry_run_changes_nothing(shell: Shell, target: str, tmp_path: Path) -> None:
    shell.job(id="j1", queue="mail")
    result = shell("move", shell.url, target, "--dry-run")
    assert "mail" in result.stdout
    assert "would move 1 job" in result.stderr
    assert not (tmp_path / "new.db").exists()
    document = shell.json("move", shell.url, target, "--dry-run")
    assert (document["dry_run"], document["begins"], document["jobs"]) == (True, "anew", {"mail": {"ready": 1}})
    shell("migrate", "--url", target)
    assert shell.json("move", shell.url, target, "--dry-run")["begins"] == "anew"
    shell.job(id="j2")


def test_nobody_is_asked_without_a_terminal(shell: Shell, target: str) -> None:
    shell.job(id="j1")
    assert "no terminal to confirm" in shell.error("move", shell.url, target, code=2)["message"]
    assert "no terminal to confirm" in shell.error("move", shell.url, target, "--abandon", code=2)["message"]


def test_what_cannot_be_moved(shell: Shell, target: str, tmp_path: Path) -> None:
    shell.job(id="j1")
    assert "same store" in shell.error("move", shell.url, shell.url, "--yes", code=1)["message"]
    assert "no store" in shell.error("move", f"sqlite:///{tmp_path / 'no.db'}", target, "--yes", code=4)["message"]
    assert "memory://" in shell.error("move", "memory://", target, "--yes", code=2)["message"]
    assert "memory://" in shell.error("move", shell.url, "memory://", "--yes", code=2)["message"]
    with Holdfast(target) as app:
        app.named("send").enqueue(to="ann")
    assert "not empty" in shell.error("move", shell.url, target, "--yes", code=1)["message"]
    shell.job(id="j2")  # it still works


def test_a_move_can_be_given_up(shell: Shell, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.job(id="j1")

    async def fails(self: Mover) -> None:
        raise MoveRefused("of the test.")

    with monkeypatch.context() as patched:
        patched.setattr(Mover, "_compare", fails)
        shell.error("move", shell.url, target, "--yes", code=1)
    assert "is being moved" in shell.error("enqueue", "send", "to=ann", code=1)["message"]
    result = shell("move", shell.url, target, "--abandon", "--yes")
    assert "works again" in result.stdout
    assert "Delete it" in result.stderr
    shell.job(id="j2")
    assert "no move" in shell.error("move", shell.url, target, "--abandon", "--yes", code=1)["message"]
    assert "abandoned" in shell.error("enqueue", "send", "to=ann", "--url", target, code=1)["message"]


def test_a_move_cut_short_says_how_to_go_on(shell: Shell, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.job(id="j1")

    async def interrupted(self: Mover) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Mover, "_compare", interrupted)
        result = shell("move", shell.url, target, "--yes", code=130)
    assert "Run the same command to continue" in result.stderr
    assert shell.json("move", shell.url, target, "--yes")["begins"] == "where it stopped"


def test_passwords_are_shown_nowhere(shell: Shell) -> None:
    url = "postgresql://bob:hush@127.0.0.1:1/db?connect_timeout=1"
    for words in (["--yes"], ["--abandon", "--yes"]):
        result = shell("move", shell.url, url, *words, code=4)
        assert "hush" not in result.output


def test_a_worker_on_a_moved_store_ends_with_the_sentence(shell: Shell, target: str) -> None:
    shell.job(id="j1", queue="mail")
    shell("move", shell.url, target, "--yes")
    result = shell("work", f"{shell.module}:app", "--app-dir", str(shell.directory), code=1)
    assert "new.db" in result.stderr
