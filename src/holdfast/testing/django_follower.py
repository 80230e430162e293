"""How a sandbox follows Django's transactions: by `on_commit`, and by the `atomic()` blocks that are open.

Called by the sandbox's store. The transaction that `TestCase` opens around a test does not count: a job is there when
the outermost block of the code under test has ended well. Uses what a connection has; imports nothing of Django.
"""

from __future__ import annotations

import weakref
from typing import Any

from .transactions import Fate, Follower


class _Marker:
    """Registered with on_commit: called at the commit. Django drops it when the block it came in is rolled back."""

    __slots__ = ("__weakref__", "_called")

    def __init__(self, called: list[bool]) -> None:
        self._called = called

    def __call__(self) -> None:
        self._called.append(True)


class _Level:
    """The blocks a job was enqueued in."""

    def __init__(self, connection: Any) -> None:
        self.called: list[bool] = []
        marker = _Marker(self.called)
        self._marker = weakref.ref(marker)
        self._outermost = next(iter(own_blocks(connection)), None)
        connection.on_commit(marker)

    def fate(self, connection: Any) -> Fate:
        if self.called:
            return Fate.COMMITTED
        if self._marker() is None:
            return Fate.ROLLED_BACK
        still_open = any(block is self._outermost for block in own_blocks(connection))
        return Fate.PENDING if still_open else Fate.COMMITTED


def own_blocks(connection: Any) -> list[Any]:
    """The open `atomic()` blocks of the code under test, outermost first, without those of `TestCase`."""
    return [block for block in list(connection.atomic_blocks) if not getattr(block, "_from_testcase", False)]


class DjangoFollower(Follower):
    """Follows one of Django's connections."""

    def begin(self) -> _Level:
        return _Level(self.connection)

    def look(self) -> None:
        self._decide(Fate.COMMITTED, self._at(lambda level: level.fate(self.connection) is Fate.COMMITTED))
        self._decide(Fate.ROLLED_BACK, self._at(lambda level: level.fate(self.connection) is Fate.ROLLED_BACK))
