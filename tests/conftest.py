"""Read by pytest before the tests: how they are spread over processes. Idle where a run has one process only.

`./check` starts a few processes (pytest-xdist), each with servers of its own; see spreading.py. All other tests yield
the processor to chaos tests. Hypothesis measures no time: a busy machine is no defect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROCESSES_MAX = 6
NICENESS = 5

_yielding = False

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are processors: chaos tests mostly wait."""
    return min(PROCESSES_MAX, (os.cpu_count() or 1) + 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from .spreading import Rows

    return Rows(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from .spreading import Order

        order = Order(item.nodeid for item in items)
        items.sort(key=lambda item: order.key(item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _yielding
    if hasattr(item.config, "workerinput") and not _yielding:
        from .spreading import file_of, is_row

        if not is_row(file_of(item.nodeid)):
            os.nice(NICENESS)  # for good: what comes after it in this process is no chaos test
            _yielding = True
    return (yield)
