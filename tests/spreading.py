"""How a run is spread over processes (pytest-xdist): which tests go together, and which process gets them.

Used by conftest.py. Chaos tests watch real leases run out: they mostly wait, and a machine that is too busy fails them.
So each of their files is run by one process, one test after another. All processes but a few take such files until
there are none left, and only then other tests; those few have other tests from the beginning, as many as there are
processors, to use the time in which the chaos tests wait. They yield to the chaos tests (see NICENESS in conftest.py).
"""

from __future__ import annotations

import functools
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from .turns import file_of

for name in ("_assign_work_unit", "_reschedule", "_split_scope"):
    assert hasattr(LoadScopeScheduling, name), "pytest-xdist changed: rows would be torn apart. Adapt Rows."

ROOT = Path(__file__).parent.parent
LONG = ("tests/simulation/", "tests/chaos/", "tests/typing/", "tests/browser/")
TOGETHER = ("tests/browser/", "tests/typing/")  # one process starts one browser, and fills one cache of mypy's
MANY = 500  # tests of one file: they go in pieces, since to send one alone costs more than many of them
PIECE = 16


def fillers(processes: int) -> int:
    """How many of these processes take no row while there is other work. One is enough for rows to continue."""
    return max(0, min(os.cpu_count() or 1, processes - 1))


@functools.cache
def is_row(path: str) -> bool:
    """Whether the tests of a file must run one after another, in one process."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return "pytest.mark.chaos" in text and "pytest.mark.spread" not in text


def is_long(nodeid: str) -> bool:
    return nodeid.startswith(LONG) or "_ten_times_as_large" in nodeid


class Order:
    """Rows first, the largest at once; then what takes long alone; what goes in small pieces last, so that all
    processes end together."""

    def __init__(self, nodeids: Iterable[str]) -> None:
        self.tests = Counter(file_of(nodeid) for nodeid in nodeids)

    def key(self, nodeid: str) -> tuple[int, int, str]:
        file = file_of(nodeid)
        if is_row(file):
            return 0, -self.tests[file], file
        if is_long(nodeid):
            return 1, 0, ""
        return 3 if self.tests[file] >= MANY else 2, 0, ""

    def is_row(self, unit: str) -> bool:
        return unit in self.tests and is_row(unit)

    def unit(self, nodeid: str) -> str:
        """The tests with the same answer go to one process together."""
        file = file_of(nodeid)
        if is_row(file):
            return file
        if file.startswith(TOGETHER):
            return file.rpartition("/")[0]
        if is_long(nodeid) or self.tests[file] < MANY:
            return nodeid
        return f"{file}#{zlib.crc32(nodeid.encode()) % (self.tests[file] // PIECE)}"


class Rows(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """xdist's scheduler of units, with our units, order and choice. (Its own time is quadratic in their number.)"""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the tests come in our order

    def schedule(self) -> None:
        if self.collection is None:
            nodeids = next(iter(self.registered_collections.values()))
            self._order = Order(nodeids)
            self._places = {nodeid: place for place, nodeid in enumerate(nodeids)}
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._order.unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        name = next(iter(self.workqueue))
        if node in self.nodes[len(self.nodes) - fillers(len(self.nodes)) :]:
            name = next((other for other in self.workqueue if not self._order.is_row(other)), name)
        unit = self.assigned_work[node][name] = self.workqueue.pop(name)
        node.send_runtest_some([self._places[nodeid] for nodeid, done in unit.items() if not done])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        name = self._order.unit(nodeid)
        unit = self.assigned_work[node][name]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][name]
        self._reschedule(node)


class Messages:
    """In a process that runs tests: of six messages per test, send the three that a quiet run's summary depends on.

    xdist also tells the first process that a test begins and ends, and that its set-up and tear-down went well; there
    each is unpacked and handed to every plug-in, which prints nothing. A report that failed, was skipped or carries
    output is sent in any phase. Where somebody wants to see more (-v, --durations, --junitxml), everything is sent.
    """

    HOOKS = ("pytest_runtest_logstart", "pytest_runtest_logfinish", "pytest_runtest_logreport")

    def __init__(self, interactor: Any) -> None:
        self._send = interactor.pytest_runtest_logreport

    @classmethod
    def shorten(cls, config: pytest.Config) -> None:
        option = config.option
        if option.verbose >= 0 or option.durations is not None or option.xmlpath:
            return
        plugins = config.pluginmanager
        (interactor,) = [one for one in plugins.get_plugins() if type(one).__name__ == "WorkerInteractor"]
        for name in cls.HOOKS:
            getattr(config.hook, name)._remove_plugin(interactor)  # fails where it has no such hook any more
        plugins.register(cls(interactor))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.sections:
            self._send(report)
