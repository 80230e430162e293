"""Chains in a runner: jobs of a strict group that were leased together, each begun when the one before has succeeded.

Used by the runner, on its loop. A job that has not begun in time, or whose predecessor did not succeed, is released.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ...records import Lease

CHAIN_SECONDS_MAX = 1.0  # release jobs of a chain that have not begun within this time


class Chain:
    """The jobs of a group that follow one that was started, each when the one before has succeeded."""

    __slots__ = ("rest", "timer")

    def __init__(self) -> None:
        self.rest: deque[Lease] = deque()
        self.timer: asyncio.TimerHandle | None = None


class RunnerChains:
    """A runner's chains. Most runners have none: callers check whether `after` is empty first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_back: Callable[[Lease], None]) -> None:
        self._loop, self._give_back = loop, give_back
        self.after: dict[str, Chain] = {}  # by the token of the running job of each chain

    def add(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the first lease of each chain. The rest follow one by one, or are released in time."""
        first: list[Lease] = []
        for lease in leases:
            if lease.chained:
                self.after.setdefault(first[-1].token, Chain()).rest.append(lease)
            else:
                first.append(lease)
        for lease in first:
            if lease.token in self.after:
                chain = self.after[lease.token]
                chain.timer = self._loop.call_later(CHAIN_SECONDS_MAX, self.cut, chain)
        return first

    def next(self, before: Lease, *, succeeded: bool) -> Lease | None:
        """The job to begin next. None: the chain is over, and its remaining jobs were released."""
        chain = self.after.pop(before.token)
        if not (succeeded and chain.rest):
            self.cut(chain)
            return None
        following = chain.rest.popleft()
        if chain.rest:
            self.after[following.token] = chain
        elif chain.timer is not None:
            chain.timer.cancel()
        return following

    def cut(self, chain: Chain) -> None:
        """Release the jobs of a chain that have not begun."""
        if chain.timer is not None:
            chain.timer.cancel()
        while chain.rest:
            self._give_back(chain.rest.popleft())

    def cut_with(self, token: str) -> None:
        """Release the chain that this job waits in."""
        for chain in [one for one in self.after.values() if any(lease.token == token for lease in one.rest)]:
            self.cut(chain)

    def cut_all(self) -> None:
        """Release the jobs of all chains that have not begun."""
        for chain in list(self.after.values()):
            self.cut(chain)
