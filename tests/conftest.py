"""Read by pytest before the tests: how they are spread over processes. Idle where a run has one process only.

`./check` starts a few processes (pytest-xdist), each with servers of its own; see spreading.py. All other tests yield
the processor to chaos tests. Hypothesis measures no time: a busy machine is no defect.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from . import turns

PROCESSES_MAX = 8
NICENESS = 10  # a chaos test gets nine times the share of what yields to it

_yielding = False
_failed = pytest.StashKey[bool]()
_turn = pytest.StashKey[int | None]()

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests send these to processes they start, which inherit that a signal is ignored: `nohup ./check &` ignores both.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", default=turns.ALL, help="all, or commit, or a number from 0: see tests/turns.py")
    parser.addoption("--turn-every", action="store_true", help="all tests take turns, not only some")
    parser.addoption("--import-only", action="store_true", help="import the files of tests, which compiles them")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_turn] = turns.parse(config.getoption("turn"))


def every(config: pytest.Config) -> bool:
    return bool(config.getoption("turn_every"))


def pytest_report_header(config: pytest.Config) -> str | None:
    turn = config.stash[_turn]
    if turn is None:
        return None
    which = "all tests" if every(config) else "the variants of tests that take turns"
    return f"an eighth of {which}; these again: --turn {turn}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are processors, and four more for chaos tests, which mostly wait. Without these one more is
    enough: each process collects all tests and starts servers of its own."""
    waiting = 1 if "not chaos" in config.getoption("markexpr").split(" and ") else 4
    return min(PROCESSES_MAX, (os.cpu_count() or 1) + waiting)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from .spreading import Rows

    return Rows(config, log) if config.getoption("dist") == "load" else None


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        from .spreading import Messages

        Messages.shorten(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests are collected to stay, in every process twenty thousand: the garbage collector leaves them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    done = yield
    config = metafunc.config
    repeats = "not repeat" not in config.getoption("markexpr").split(" and ")
    turns.leave_out(metafunc, None if every(config) else config.stash[_turn], repeats=repeats)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> list[pytest.Item] | None:
    """With --import-only a file has no test: to make them takes as long as to import what they need."""
    return [] if collector.config.getoption("import_only") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.stash[_turn]
    if turn is not None and every(config):
        turns.deselect_all_but(config, items, turn)
    if hasattr(config, "workerinput"):
        from .spreading import Order

        order = Order(item.nodeid for item in items)
        items.sort(key=lambda item: order.key(item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _yielding
    if hasattr(item.config, "workerinput") and not _yielding:
        from .spreading import is_row

        if not is_row(turns.file_of(item.nodeid)):
            os.nice(NICENESS)  # for good: what comes after it in this process is no chaos test
            _yielding = True
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a failed test left open is its own: nobody closed it. Found later, it would fail an innocent neighbour."""
    if item.stash.get(_failed, False):
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # frames that keep it
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()
