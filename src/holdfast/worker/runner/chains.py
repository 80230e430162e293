"""Chains in a runner: jobs of a strict group that were leased together, each begun when the one before has succeeded.

Used by the runner, on its loop. What has not begun in time, or whose predecessor did not succeed, is given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ...records import Lease

CHAIN_SECONDS_MAX = 1.0  # give back jobs of a chain that have not begun within this time


class Chain:
    """The jobs of a group that follow one that was started, each when the one before has succeeded."""

    __slots__ = ("rest", "timer")

    def __init__(self) -> None:
        self.rest: deque[Lease] = deque()
        self.timer: asyncio.TimerHandle | None = None


class RunnerChains:
    """Most runners have none: their callers look whether `after` is empty before they call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_back: Callable[[Lease], None]) -> None:
        self._loop, self._give_back = loop, give_back
        self.after: dict[str, Chain] = {}  # by the token of the job before the rest

    def add(self, leases: Sequence[Lease]) -> list[Lease]:
        """The first lease of each chain; the rest follows when the one before has succeeded, or goes back in time."""
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
        """The job to begin next; None: the chain is over, and what is left of it was given back."""
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
        """Give back what has not begun of a chain."""
        if chain.timer is not None:
            chain.timer.cancel()
        while chain.rest:
            self._give_back(chain.rest.popleft())

    def cut_with(self, token: str) -> None:
        """Give back the chain that this job waits in."""
        for chain in [one for one in self.after.values() if any(lease.token == token for lease in one.rest)]:
            self.cut(chain)

    def cut_all(self) -> None:
        """Give back what has not begun of any chain."""
        for chain in list(self.after.values()):
            self.cut(chain)
