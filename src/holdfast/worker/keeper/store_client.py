"""The keeper's store client: a timeout on every call, a note of every failure, backoff with jitter, and limits that
adapt to how fast the store is.

Called by the keeper's modules; the mover uses the limits. It never retries by itself: only the caller knows whether a
call may be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from ... import logs
from ...backends.contract import Backend
from ...clock import Clock
from ...errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown, StoreSealed
from ...records import CLAIM_BYTES_MAX, ClaimRequest, Lease
from .meter import Meter

# ----------------------------------------------------------------------------------------------------------------------
# How much one call requests: less after each timeout, more again while calls are fast. Used by everything that
# repeats a call or makes a bounded pass: claims, settlements, reports, sweeps, the mover. Plain arithmetic: no clock.
# After a few timeouts the limit is down to what the store can do within a call timeout, even if that is one job, so
# every pass makes progress. If the store cannot even do that, the call gets more time instead: nothing is repeated
# unchanged.


FAST_SHARE = 0.25  # a call that took less than this share of its timeout may request twice as much next time
PATIENCE_MAX = 4  # call timeouts for a call that cannot request less
CLAIM_BYTES_MIN = 1 << 14  # lower bound for a claim's `bytes_max`; one job is leased whatever its size

REARRANGE_LIMIT = 500  # jobs or groups per step of a rearrangement


class AdaptiveLimit:
    """A limit between `least` and `most`, and how many call timeouts its call may take: more than one only at `least`.

    A call that is always the same has `most` 1.
    """

    __slots__ = ("_least", "most", "patience", "value")

    def __init__(self, most: int, least: int = 1) -> None:
        self._least, self.most = least, most
        self.value, self.patience = most, 1

    @property
    def shrunk(self) -> bool:
        return self.value < self.most

    def timed_out(self) -> None:
        """The call with this limit timed out."""
        if self.value == self._least:
            self.patience = min(PATIENCE_MAX, 2 * self.patience)
        self.value = max(self._least, self.value // 2)

    def answered(self, timeout_share: float) -> None:
        """The call returned within this share of its timeout. If it was fast, double: still far from timing out."""
        if timeout_share < FAST_SHARE:
            self.value, self.patience = min(self.most, 2 * self.value), 1


# ----------------------------------------------------------------------------------------------------------------------
# Calling the store


T = TypeVar("T")

BACKOFF_SECONDS_FIRST = 0.02
BACKOFF_SECONDS_MAX = 2.0
SLOW_SHARE = 0.5  # a call that fails after more than this share of its timeout counts as timed out


class StoreClient:
    """Calls to one backend, each with a timeout."""

    def __init__(self, backend: Backend, clock: Clock, call_timeout: float, meter: Meter | None = None) -> None:
        self.backend, self.clock, self.call_timeout, self._meter = backend, clock, call_timeout, meter
        self.down_since: float | None = None  # when the first call that failed since the last reply was sent (steady)
        self.last_error = ""

    async def call(self, verb: str, answer: Awaitable[T], patience: int = 1) -> T:
        """Return the call's result, or raise BackendError, OutcomeUnknown or ConfigurationError (the store rejects us:
        a permission is missing). Any other exception is logged and raised as BackendUnavailable. `patience`: how many
        call timeouts it may take."""
        sent = self.clock.steady()
        try:
            async with asyncio.timeout(patience * self.call_timeout):
                result = await answer
        except TimeoutError as error:
            self._note(verb, sent, error)
            raise OutcomeUnknown(verb) from error
        except StoreSealed:
            self.down_since = None  # a refusal, but still a reply
            raise
        except (BackendError, ConfigurationError, OutcomeUnknown) as error:
            self._note(verb, sent, error)
            raise
        except Exception as error:  # a bug in a backend must not end the worker and drop its outcomes
            self._note(verb, sent, error)
            logs.call_surprised(verb, error)
            text = f"{verb} failed: {type(error).__name__}. The log has its traceback; the call will be repeated."
            raise BackendUnavailable(text) from error
        self.down_since = None
        if self._meter is not None:
            self._meter.called(verb, self.clock.steady() - sent)
        return result

    async def call_within(self, verb: str, limit: AdaptiveLimit, ask: Callable[[int], Awaitable[T]]) -> T:
        """Like `call`, with the limit's current value as argument; the limit adapts to the result."""
        sent = self.clock.steady()
        try:
            result = await self.call(verb, ask(limit.value), limit.patience)
        except HoldfastError as error:
            self.adapt((limit,), sent, error)
            raise
        self.adapt((limit,), sent)
        return result

    def adapt(self, limits: Iterable[AdaptiveLimit], sent: float, error: BaseException | None = None) -> bool:
        """Adapt a call's limits to its duration or failure. Return whether the call was slow or timed out."""
        share = (self.clock.steady() - sent) / self.call_timeout
        slow = isinstance(error, OutcomeUnknown) or share > SLOW_SHARE
        for limit in limits:
            if error is not None:
                if slow:
                    limit.timed_out()
            elif limit.value < limit.most or limit.patience > 1:
                limit.answered(share)
        return slow

    def _note(self, verb: str, sent: float, error: BaseException) -> None:
        if self._meter is not None:
            self._meter.called(verb, self.clock.steady() - sent, failed=True)
        self.last_error = type(error).__name__
        if self.down_since is None:
            self.down_since = sent


def backoff(tries: int) -> float:
    """Seconds before try number tries + 1: doubling, bounded, with jitter so that workers do not retry in step."""
    return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2.0 ** min(tries - 1, 10)) * random.uniform(0.5, 1.5)


def cut_short(leases: Sequence[Lease], request: ClaimRequest) -> bool:
    """Whether a claim that brought fewer jobs than requested may have left some behind because of their size."""
    if not leases:
        return False
    shrunk = request.bytes_max < CLAIM_BYTES_MAX
    return shrunk or 2 * sum(len(lease.args) for lease in leases) > request.bytes_max
