"""Wrong arguments are errors before anything runs: mypy and pyright find each marked line, and nothing else.

Pyright is run as basedpyright, the same checker in a wheel: pyright's own wheel downloads its program when it starts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def check(case: Path, cache: Path, *flags: str) -> dict[int, set[str]]:
    """The error codes mypy reports, by line."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, "--config-file", "", *flags, str(case)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    found: dict[int, set[str]] = {}
    for line in done.stdout.splitlines():
        match = re.match(rf".*{re.escape(case.name)}:(\d+): error: .*\[([a-z-]+)\]$", line)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
        else:
            assert ": note: " in line, line
    return found


def marked(case: Path) -> dict[int, set[str]]:
    lines = case.read_text(encoding="utf-8").splitlines()
    marks = ((number, re.search(r"# E: ([a-z-]+(, [a-z-]+)*)$", line)) for number, line in enumerate(lines, 1))
    return {number: set(mark[1].split(", ")) for number, mark in marks if mark}


CASES_WITH_MISTAKES = {"calls.py": 20, "batches.py": 5, "names.py": 9, "flow.py": 12, "results.py": 7, "hooks.py": 4}


@pytest.mark.parametrize(("name", "least"), CASES_WITH_MISTAKES.items())
def test_mypy_strict_finds_exactly_the_planted_mistakes(name: str, least: int, cache: Path) -> None:
    case = CASES / name
    expected = marked(case)
    assert len(expected) >= least
    assert check(case, cache, "--strict") == expected


def test_an_untyped_first_parameter_is_unchecked_not_wrong(cache: Path) -> None:
    assert check(CASES / "untyped.py", cache) == {}


@pytest.fixture(scope="module")
def found_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """The lines of every case in which pyright sees an error."""
    folder = tmp_path_factory.mktemp("pyright")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', encoding="utf-8")
    cases = [shutil.copy(case, folder) for case in CASES.glob("*.py")]
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=folder)
    assert done.returncode in (0, 1), done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(cases)
    found: dict[str, set[int]] = {}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, set()).add(one["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.glob("*.py")))
def test_pyright_finds_the_same_mistakes(name: str, found_by_pyright: dict[str, set[int]]) -> None:
    assert found_by_pyright.get(name, set()) == set(marked(CASES / name))
