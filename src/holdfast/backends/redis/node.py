"""One primary of a cluster: whether it answers, whether it is safe to give it jobs, and calls to it.

Called by nodes.py. A node that does not answer is left alone for a moment: it must not hold up those who have work for
the others. A worker's calls go to many nodes at once, and the slowest holds up the rest; so when one takes unusually
long, the node is asked in a few bytes whether it is there, and the call is given up if it is not. Its fate is unknown
then, as after any call that timed out, and it is repeated. Who is given up so gets more time for the next call: a node
that is slow, and not silent, is heard in the end.

A node is inspected before it is used: at the start, when it joined, when a slot first came to it, after it was silent.
One that could lose jobs gets no new ones; those that came to it with their slot are worked off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import BusyLoadingError, ResponseError

from ... import logs
from ...errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown
from .connection import Connections, packed_command
from .lua import FILLING

PING = packed_command("PING")
LOOK_SECONDS = 0.25  # a silent node is looked at this often, for no longer than this
HANG_SECONDS = 0.05  # a call given up after this long speaks against its node: it is looked at before the next one
LONG_SECONDS = 0.3  # a hurried call that takes longer, and longer than is usual there, has its node looked at
LONG_TIMES = 4.0  # … by this factor
INSPECT_SECONDS = 5.0  # a node that was found to be unsafe is inspected this often

KEEPING = (*FILLING, "open")  # verbs that bring work into a store, or make one
SWEEPS = ("promote", "prune", "recover", "refill", "retain")
# Verbs of a worker, for which other nodes' answers wait. Who enqueues or operates has nothing better to do than wait.
HURRIED = frozenset({"begin", "exchange", "map", "register", "registry", "renew", "report", "retire", *SWEEPS})

Address = tuple[str, int]
Judge = Callable[[Connections], Awaitable[None]]


class Node:
    """One primary."""

    def __init__(self, address: Address, connections: Connections, judge: Judge | None = None) -> None:
        self.address, self.connections = address, connections
        self._judge = judge
        self._unsafe: ConfigurationError | None = None  # why it is not to be trusted with jobs
        self._inspect_at = 0.0  # in the past: before the next call
        self.silent = False  # it did not answer: calls fail at once, until it answers when it is looked at
        self._doubted = False  # a call to it was given up: it may be busy, or its caller was; it is looked at first
        self._look_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._usual = 0.0  # how long a hurried call took lately, at most

    async def call(self, verb: str, command: bytes, *, bare: bool = False, **how: Any) -> Any:
        """As `Connections.call`; fails at once while the node is known to be silent. A bare call needs no safe node."""
        await self._check_heard(waits=verb not in HURRIED and verb != "wait_for_work")
        began = time.monotonic()
        try:
            if not bare and began >= self._inspect_at:
                await self._inspect()
            if not bare and self._unsafe is not None and verb in KEEPING:
                raise self._unsafe
            if verb in HURRIED:
                return await self._hurried(verb, command, **how)
            return await self.connections.call(verb, command, **how)
        except HoldfastError as error:
            self.silent = isinstance(error, BackendError | OutcomeUnknown) and not refusal(error)
            raise
        except asyncio.CancelledError:
            if verb != "wait_for_work" and time.monotonic() - began > HANG_SECONDS:  # who waits ends it when it likes
                self._doubted = True
            raise

    async def _hurried(self, verb: str, command: bytes, **how: Any) -> Any:
        """Give the call up when it takes long and the node does not answer a look, either."""
        began, loop = time.monotonic(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as scope:

                def judge(_: asyncio.Task[None]) -> None:
                    if self.silent and not timer.cancelled():
                        scope.reschedule(loop.time())

                def doubt() -> None:
                    self._look().add_done_callback(judge)

                timer = loop.call_later(max(LONG_SECONDS, LONG_TIMES * self._usual), doubt)
                try:
                    answer = await self.connections.call(verb, command, **how)
                finally:
                    timer.cancel()
        except TimeoutError:
            self._usual = max(2.0 * self._usual, LONG_SECONDS / 2.0)
            if how["writes"]:
                raise OutcomeUnknown(verb) from None
            raise self._unavailable() from None
        self._usual = max(time.monotonic() - began, 0.9 * self._usual)
        return answer

    # ------------------------------------------------------------------ is it safe?

    async def inspect(self) -> None:
        """Refuse a node that could lose jobs; one that cannot be asked is asked when it is first used."""
        try:
            await self._check_heard(waits=True)
            await self._inspect()
        except (BackendError, OutcomeUnknown):
            return
        if self._unsafe is not None:
            raise self._unsafe

    async def _inspect(self) -> None:
        unsafe: ConfigurationError | None = None
        try:
            if self._judge is not None:
                await self._judge(self.connections)
        except ConfigurationError as error:
            host, port = self.address
            unsafe = ConfigurationError(f"the cluster's node {host}:{port} takes no jobs: {error}")
            if self._unsafe is None:
                logs.unsafe_node(unsafe)
        self._unsafe = unsafe
        self._inspect_at = float("inf") if unsafe is None else time.monotonic() + INSPECT_SECONDS

    # ------------------------------------------------------------------ is it there?

    async def _check_heard(self, waits: bool) -> None:
        """Fail where the node is silent. Who waits hears whether it still is; others have it looked at meanwhile."""
        if not self.silent and not self._doubted:
            return
        now = time.monotonic()
        if self.silent and now < self._look_at:
            raise self._unavailable()
        looking = self._look()
        if waits or not self.silent:
            try:
                await asyncio.shield(looking)
            except asyncio.CancelledError:
                if time.monotonic() - now > HANG_SECONDS:
                    self._fall_silent()
                raise
        if self.silent:
            raise self._unavailable()

    def _look(self) -> asyncio.Task[None]:
        """Ask the node whether it is there, once at a time; afterwards `silent` says it."""
        loop, looking = asyncio.get_running_loop(), self._looking
        if looking is None or looking.done() or looking.get_loop() is not loop:
            self._look_at = time.monotonic() + LOOK_SECONDS
            looking = self._looking = loop.create_task(self._ping())
        return looking

    async def _ping(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):  # urgent: a node all of whose connections are busy is there
                await self.connections.call("ping", PING, writes=False, urgent=True)
        except (HoldfastError, TimeoutError):
            self._fall_silent()
            return
        if self.silent:
            self._inspect_at = 0.0  # it may have been started anew, with other settings
        self.silent = self._doubted = False

    def _fall_silent(self) -> None:
        self.silent, self._look_at = True, time.monotonic() + LOOK_SECONDS

    def _unavailable(self) -> BackendUnavailable:
        host, port = self.address
        return BackendUnavailable(f"the cluster's node {host}:{port} does not answer. Try again.")

    def abandon(self) -> None:
        """Let go of what is open, without waiting."""
        looking, self._looking = self._looking, None
        if looking is not None and not looking.done() and not looking.get_loop().is_closed():
            looking.get_loop().call_soon_threadsafe(looking.cancel)
        self.connections.abandon()


def refusal(error: HoldfastError) -> str:
    """The node's own words, if it refused; nothing, if it was not heard."""
    said = error.__cause__
    if isinstance(said, BusyLoadingError):
        return "LOADING"
    return str(said) if isinstance(said, ResponseError) else ""
