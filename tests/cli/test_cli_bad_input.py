"""The command line against what people, shells, terminals and handlers do to it: a sentence, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast
from holdfast.cli.output import Printer
from holdfast.names import visible

NOT_TEXT = "\udcff"  # how Python shows an argument that is not UTF-8


def put(shell: Shell, name: str, text: str) -> list[str]:
    """A module of the user's, and the words that name its app."""
    module = f"{name}_{shell.directory.name.replace('-', '_')}"
    (shell.directory / f"{module}.py").write_text(text)
    return [f"{module}:app", "--app-dir", str(shell.directory)]


@pytest.mark.parametrize("words", [[], ["dead"]])
def test_no_words_show_the_help_once(shell: Shell, words: list[str]) -> None:
    told = shell(*words, code=2).stderr
    assert told.count("Usage:") == 1
    assert "error" not in told


@pytest.mark.parametrize("command", [["job"], ["explain"], ["cancel"], ["retry"], ["dead", "show"], ["dead", "revive"]])
def test_an_id_that_is_not_text_is_a_usage_error(shell: Shell, command: list[str]) -> None:
    assert "lone surrogate" in shell.error(*command, NOT_TEXT, code=2)["message"]
    assert shell.error(*command, "", code=2)["message"].startswith("the id is empty")


@pytest.mark.parametrize("command", [["dead", "ls"], ["groups"]])
def test_a_limit_no_store_can_hold_is_a_usage_error(shell: Shell, command: list[str]) -> None:
    assert "must be an int" in shell.error(*command, "-n", "9" * 30, code=2)["message"]


def test_an_argument_may_be_called_self(shell: Shell) -> None:
    assert shell.json("enqueue", "far", "self=1")["job"]["args"] == {"self": 1}


def test_looking_at_an_empty_file_makes_no_store_of_it(empty: Shell) -> None:
    file = empty.directory / "jobs.db"
    file.touch()
    assert empty.error("jobs", code=4)["code"] == "store_unreachable"
    assert file.stat().st_size == 0


def test_a_password_in_a_path_is_not_shown(empty: Shell) -> None:
    told = empty.error("jobs", "-u", "sqlite:///bob:s3cret@host/x.db", code=4)
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    "line",
    [
        "raise BaseExceptionGroup('all of it', [KeyboardInterrupt()])",
        "import holdfast; raise holdfast.Bury('no')",
        "raise ValueError('postgresql://bob:s3cret@host/db')",
        "import holdfast; app = holdfast.Holdfast('mysql://bob:s3cret@host/db')",
    ],
)
def test_whatever_a_module_raises_while_it_loads_is_reported_with_the_users_line(shell: Shell, line: str) -> None:
    words = put(shell, "broken", f"\n{line}\n")
    message = shell.error("work", *words, code=7)["message"]
    assert f"{words[0].removesuffix(':app')}.py:2" in message
    assert "s3cret" not in message


def test_a_missing_module_is_looked_for_where_app_dir_says(shell: Shell) -> None:
    told = shell.error("work", "nowhere.app", "--app-dir", str(shell.directory), code=7)
    assert str(shell.directory) in told["message"]
    assert "write nowhere:app" in told["hint"]


def test_what_a_handler_raised_cannot_steer_the_terminal(shell: Shell) -> None:
    with Holdfast(shell.url) as app:
        app.bury(app.named("far", id="j1").enqueue(), "\x1b[31mred\x07\x9b2J")
    for words in (["job", "j1"], ["dead", "ls"], ["dead", "show", "j1"], ["explain", "j1"]):
        told = shell(*words).stdout
        assert r"\x1b[31mred\x07\x9b2J" in told
        assert not set("\x1b\x07\x9b") & set(told)


def test_visible_keeps_lines_of_a_traceback_and_letters_of_all_kinds() -> None:
    assert visible("a\n\tb ü ☃") == "a\n\tb ü ☃"
    assert visible("a\r\x00", "") == r"a\x0d\x00"


def test_a_narrow_terminal_cuts_no_id_and_drops_no_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rows = [("01a1e1b7-a5fa-75af-8272-685b5ac10827", "cancelled", "a.task.with.a.long.name", "default")]
    Printer(as_json=False).table(("id", "state", "task", "queue"), rows, empty="", whole=2)
    told = capsys.readouterr().out
    assert all(word in told for word in rows[0][:2])


def test_a_pipe_gets_one_line_for_each_row_and_nothing_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "a long story " * 50
    Printer(as_json=False).table(("id", "n", "error"), [("j1", "1", text), ("j2☃", "20", "two\nlines")], empty="")
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "n", "error"]
    assert rows == [f"j1    1  {text.rstrip()}", r"j2☃  20  two\x0alines"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["stats"], ["stats", "--json"]])
def test_a_full_disk_behind_stdout_is_one_sentence(shell: Shell, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "holdfast.cli", *words]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bulk_verb_that_reached_its_limit_says_that_there_may_be_more(shell: Shell) -> None:
    for id in ("j1", "j2", "j3"):
        shell.job(id=id)
    assert "the newest 2" in shell("cancel", "-q", "ready", "-n", "2", "-y").stderr
    assert "the newest" not in shell("cancel", "-q", "ready", "-n", "2", "-y").stderr
    assert "the newest 2" in shell("retry", "-q", "cancelled", "-n", "2", "--dry-run").stderr
