"""Which variants of a test a run has, where it has not all: `./check` takes an eighth, another with each commit.

Some tests have many variants: lines of a table, seeds of a walk, each kind of fault, one kill on each of three stores.
Those that carry the mark `turn` or `chaos` take turns, and so do those in the folders of SLOW, where a variant opens a
store on a server or starts a process; where some variants of a test are marked, only they do. Of the variants of one
test every eighth runs, or one where there are fewer, so no test is ever left out, and eight commits in a row have them
all. The turn depends only on the number of commits: another run on the same commit has the same tests. With
`--turn-every` all tests take turns, as variants of their file: so the newest Python gets an eighth of its part in each
run. See docs/decisions/0044, 0058, 0065 and 0067.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

TURNS = 8
ALL = "all"
MARKS = ("turn", "chaos")
SLOW = tuple(
    f"tests/{folder}/"
    for folder in ("app", "backends", "bench", "browser", "cli", "dashboard", "inspection", "moving", "simulation")
)


def turn_of_commit() -> int:
    """How many commits there are up to this one; 0 in a copy without them."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout)


def parse(option: str) -> int | None:
    """The number of the turn; None where every variant runs."""
    if option == ALL:
        return None
    if option == "commit":
        return turn_of_commit() % TURNS
    if option.isdecimal() and int(option) < TURNS:
        return int(option)
    raise pytest.UsageError(f"--turn is {ALL}, commit, or a number below {TURNS}, not {option!r}")


def chosen(variants: Iterable[tuple[str, str]], turn: int) -> set[str]:
    """Of these (test, variant), the variants whose turn it is. Tests begin at different places, so that of two tests on
    the same three stores not both leave out the same store."""
    tests: dict[str, list[str]] = defaultdict(list)
    for test, variant in variants:
        tests[test].append(variant)
    return {
        variant
        for test, mine in tests.items()
        for place, variant in enumerate(mine)
        if (place + zlib.crc32(test.encode()) + turn) % min(TURNS, len(mine)) == 0
    }


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def leave_out(metafunc: pytest.Metafunc, turn: int | None, *, repeats: bool) -> None:
    """Of a test's variants keep those whose turn it is, before a test is made of each: half of all are left out, and
    each of several processes would make them. Not `repeats`: nor those marked repeat, which -m would leave out later.
    """
    calls = metafunc._calls
    if turn is not None:
        test = metafunc.definition
        marked = [call.id for call in calls if any(mark.name in MARKS for mark in call.marks)]
        every = any(test.get_closest_marker(mark) for mark in MARKS) or test.nodeid.startswith(SLOW)
        taking = marked or [call.id for call in calls if every]
        left_out = set(taking) - chosen(((test.nodeid, variant) for variant in taking), turn)
        calls[:] = [call for call in calls if call.id not in left_out]
    if not repeats:
        # A test all of whose variants repeat is left to -m: where none is left, pytest makes a test without a variant.
        calls[:] = [call for call in calls if not any(mark.name == "repeat" for mark in call.marks)] or calls


def deselect_all_but(config: pytest.Config, items: list[pytest.Item], turn: int) -> None:
    """Keep the tests whose turn it is, where all of them take turns."""
    nodeids = [item.nodeid for item in items]
    left_out = set(nodeids) - chosen(((file_of(nodeid), nodeid) for nodeid in nodeids), turn)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
