"""Every error is a sentence and an exit code; no traceback reaches the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.cli.shells import Shell

from holdfast import errors
from holdfast.cli import jobs
from holdfast.cli.exits import Exit, exit_for
from holdfast.cli.main import COMMANDS, cli, main


def test_version_is_quick_because_it_loads_almost_nothing() -> None:
    code = (
        "import sys; from holdfast.cli.main import main; main(['--version']);"
        "print(sorted({'rich', 'msgspec', 'asyncio', 'sqlite3', 'holdfast.app'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    version, loaded = told.splitlines()
    assert version.startswith("holdfast ")
    assert loaded == "[]"


def test_help_lists_every_command_without_loading_them() -> None:
    code = (
        "import sys; from holdfast.cli.main import main; main(['--help']);"
        "print(sorted(name for name in sys.modules if name.startswith('holdfast.cli.')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "['holdfast.cli.exits', 'holdfast.cli.main']"
    for command in COMMANDS:
        assert f"\n  {command} " in told


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_loads_and_has_help(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout or command in ("dead", "cron", "dev", "completion", "keys")


def test_a_mistyped_command_is_met_with_a_proposal() -> None:
    result = CliRunner().invoke(cli, ["canel"])
    assert result.exit_code == 2
    assert "Did you mean cancel?" in result.stderr


def test_an_unexpected_error_is_one_sentence(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> Any:
        raise RuntimeError("the\nbilge is full")

    monkeypatch.setattr(jobs, "find_id", explode)
    result = shell("job", "x", code=1)
    assert result.stderr.splitlines()[0] == "error: unexpected RuntimeError: the bilge is full"
    assert shell.error("job", "x", code=1)["message"] == "unexpected RuntimeError: the bilge is full"
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(cli, ["job", "x"]).stderr


def test_an_interrupt_is_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "find_id", interrupt)
    shell("job", "x", code=130)
    assert shell.error("job", "x", code=130)["code"] == "interrupted"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.JobNotFound("x"), Exit.NOT_FOUND),
        (errors.TaskNotRegistered("x"), Exit.NOT_FOUND),
        (errors.BackendUnavailable("busy"), Exit.UNREACHABLE),
        (errors.StoreReplaced("jobs.db", gone=True), Exit.UNREACHABLE),
        (errors.OutcomeUnknown("retry"), Exit.FAILED),
        (errors.MoveRefused("a row cannot be read"), Exit.FAILED),
        (errors.SchemaMismatch(1, 2), Exit.SCHEMA),
        (errors.ConfigurationError("wrong"), Exit.USAGE),
        (errors.ArgumentsRejected("t", "no"), Exit.USAGE),
        (errors.StateConflict("x", "cancel", "dead"), Exit.FAILED),
        (errors.WaitTimedOut("x", 1.0, "ready"), Exit.FAILED),
        (click.UsageError("no"), Exit.USAGE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (RuntimeError("no"), Exit.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_their_exit_codes(error: BaseException, code: Exit) -> None:
    assert exit_for(error) is code


def broken(shell: Shell, name: str, text: str) -> list[str]:
    """A module that cannot be imported, and the options that name it."""
    module = f"{name}_{shell.module}"
    (shell.directory / f"{module}.py").write_text(text)
    return ["--app", f"{module}:app", "--app-dir", str(shell.directory)]


@pytest.mark.parametrize(
    ("name", "text", "line", "said"),
    [
        ("raises", "x = 1\nraise ValueError('no harbour')\n", 2, "ValueError: no harbour"),
        ("syntax", "x = 1\n\ndef :\n", 3, "SyntaxError"),
        ("missing", "import no_such_module_anywhere\n", 1, "no_such_module_anywhere"),
        ("exits", "raise SystemExit('bye')\n", 1, "SystemExit: bye"),
    ],
)
def test_a_failing_import_names_the_users_file_and_line(
    shell: Shell, name: str, text: str, line: int, said: str
) -> None:
    words = broken(shell, name, text)
    error = shell.error("jobs", *words, code=7)
    assert error["code"] == "import_failed"
    assert f"{name}_{shell.module}.py:{line}" in error["message"]
    assert said in error["message"]
    assert "Traceback" not in shell("jobs", *words, code=7).output


def test_a_module_or_app_that_is_not_there(shell: Shell) -> None:
    assert "there is no module" in shell.error("jobs", "--app", "no_such_module:app", code=7)["message"]
    assert "not a module name" in shell.error("jobs", "--app", "./shop.py:app", code=7)["message"]
    wrong = [f"{shell.module}:ap", "--app-dir", str(shell.directory)]
    assert "Did you mean app?" in shell.error("work", *wrong, code=7)["message"]
    other = [f"{shell.module}:send", "--app-dir", str(shell.directory)]
    assert "not a holdfast.Holdfast" in shell.error("work", *other, code=7)["message"]


def test_a_module_alone_means_its_only_app(shell: Shell) -> None:
    shell("work", shell.module, "--app-dir", str(shell.directory), "--drain")
    words = broken(shell, "none", "x = 1\n")
    assert "has no holdfast.Holdfast" in shell.error("work", words[1].partition(":")[0], *words[2:], code=7)["message"]


def test_main_answers_the_exit_code(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "nosuch"]) == 3
    assert capsys.readouterr().err.startswith("error: no job 'nosuch'")
    assert main(["queues", "--json"]) == 0


def test_the_module_runs_as_a_program(shell: Shell) -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast.cli", "job", "nosuch"], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("error: no job")
    assert done.stdout == ""


def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    for number in range(30):
        shell.job(id=f"j{number}")
    command = f"{sys.executable} -m holdfast.cli jobs | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_what_the_terminal_cannot_show_is_replaced(shell: Shell, tmp_path: Path) -> None:
    shell.job("t", id="j1", group="Ærø")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "jobs"],
        capture_output=True,
        env={"HOLDFAST_URL": shell.url, "PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert b"j1" in done.stdout


def test_a_reason_that_no_letter_has_is_answered_with_those_there_are(shell: Shell) -> None:
    shell("enqueue", "fail", "word=x", "--id", "d1")
    shell.drain()
    assert "Did you mean failed?" in shell("dead", "ls", "--reason", "fail").stderr
    assert "no dead letter has the reason 'zzz'. There are: failed." in shell("dead", "ls", "--reason", "zzz").stderr
