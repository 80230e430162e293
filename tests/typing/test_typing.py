"""Wrong arguments are errors before anything runs: mypy finds each marked line, and nothing else."""

from __future__ import annotations

import re
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
    marks = ((number, re.search(r"# E: ([a-z-]+)$", line)) for number, line in enumerate(lines, 1))
    return {number: {mark[1]} for number, mark in marks if mark}


@pytest.mark.parametrize(
    ("name", "least"), [("calls.py", 20), ("batches.py", 5), ("names.py", 9), ("flow.py", 12), ("results.py", 7)]
)
def test_mypy_strict_finds_exactly_the_planted_mistakes(name: str, least: int, cache: Path) -> None:
    case = CASES / name
    expected = marked(case)
    assert len(expected) >= least
    assert check(case, cache, "--strict") == expected


def test_an_untyped_first_parameter_is_unchecked_not_wrong(cache: Path) -> None:
    assert check(CASES / "untyped.py", cache) == {}
