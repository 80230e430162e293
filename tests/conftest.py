"""How a run is spread over processes: read by pytest before the tests, and idle where a run has one process only.

`./check` starts a few processes (pytest-xdist), each with servers of its own. Chaos tests watch real leases run out. So
their files come first, in two rows of one file after another, and whatever else goes on yields the processor to them.
Hypothesis measures no time: a busy machine is no defect.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROCESSES_MAX = 6
NICENESS = 5
ROOT = Path(__file__).parent.parent

_yielding = False

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@functools.cache
def row_of(path: str) -> str | None:
    """The row a file of tests stands in, or None where its tests may run beside any other."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if "pytest.mark.chaos" not in text or "pytest.mark.spread" in text:
        return None
    return "chaos" if path.startswith("tests/chaos/") else "chaos elsewhere"


def _row(item: pytest.Item) -> str | None:
    return row_of(item.nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: chaos tests mostly wait."""
    return min(PROCESSES_MAX, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A row goes to one process whole; the largest first. All other tests go one by one to whoever is free."""
    from xdist.scheduler import LoadScopeScheduling

    assert hasattr(LoadScopeScheduling, "_split_scope"), "pytest-xdist changed: rows would be torn apart. Adapt Rows."

    class Rows(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return row_of(nodeid.partition("::")[0]) or nodeid

    return Rows(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Chaos first, then what takes long in one piece, so that no process is left with it at the end."""
    if hasattr(config, "workerinput"):
        long = ("tests/simulation/", "tests/chaos/", "tests/typing/")
        items.sort(key=lambda item: 0 if _row(item) else 1 if item.nodeid.startswith(long) else 2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _yielding
    if hasattr(item.config, "workerinput") and not _yielding and _row(item) is None:
        os.nice(NICENESS)  # for good: what comes after it in this process is no chaos test
        _yielding = True
    return (yield)
