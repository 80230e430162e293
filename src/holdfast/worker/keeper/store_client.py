"""The keeper's store client: a timeout on every call, a note of every failure, backoff with jitter, and limits that
adapt to how fast the store is.

Called by the keeper's modules; the mover uses the limits. It never retries by itself: only the caller knows whether a
call may be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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

    def widen(self, most: int) -> None:
        """Allow up to `most` from now on, if that is more; after timeouts, the value grows there only step by step."""
        if most > self.most:
            self.value = self.value if self.shrunk else most
            self.most = most

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


def least(isolated: Mapping[str, int], capped: Mapping[str, int]) -> Mapping[str, int]:
    """Per-task maximum of a claim: the smaller of free isolated slots and this worker's caps."""
    if not (isolated and capped):
        return isolated or capped
    return {**isolated, **{task: min(free, isolated.get(task, free)) for task, free in capped.items()}}


# ----------------------------------------------------------------------------------------------------------------------
# Which queue a claim asks first, and when it asks for half of the jobs only. Pure bookkeeping of the exchange loop.
#
# Two halves in turn: the next jobs of a hundred strict groups become ready when the ones before are settled. If all of
# those end together, and all that follow start together, handlers wait for the store and then the store for handlers.
# So once, when all have ended, a claim brings half of them, and the next claim, made at once, the other half while the
# first one runs. From then on each exchange settles one half and brings what follows it, while the other half runs:
# nothing has to keep them apart.


JOBS_MIN = 64  # fewer are not worth two exchanges: half of the cost of a small one is fixed
RUNNING_PART = 0.4  # while more than this part of the jobs is still running, there are two halves already
IDLE_EXCHANGES_MAX = 4.0  # jobs that ran for longer than this many exchanges take do not wait for the store much


class Halves:
    """Whether a worker's jobs begin and end together."""

    def __init__(self) -> None:
        self._held = 0  # slots taken after the latest claim that returned jobs; 0 if there may have been more jobs
        self._answered_at = 0.0
        self.halving = False  # whether the next claim brings only half of the jobs

    def claimed(self, number: int, taken: int, now: float, *, full: bool) -> None:
        """A claim returned `number` jobs while `taken` slots were taken. `full`: it returned as many as requested."""
        self._answered_at = now
        if number:
            self._held = 0 if full else number + taken

    def alternate(self, ended: int, running: int, now: float, exchange_seconds: float) -> bool:
        """Whether the next claim should bring only half of the jobs: nearly all have ended, soon after they came."""
        self.halving = (
            self._held >= JOBS_MIN
            and running < RUNNING_PART * (running + ended)
            and now - self._answered_at <= IDLE_EXCHANGES_MAX * exchange_seconds
        )
        return self.halving

    @property
    def size(self) -> int:
        return -(-self._held // 2)


class QueueRotation:
    """The order in which a worker claims from its queues: round-robin, by weight, or fixed.

    A claim fills the free slots from the first queue before it looks at the next, so the order decides. Without
    weights, the queues take turns at being first. With weights, the queue with the fewest claimed jobs per weight goes
    first; a queue that was empty meanwhile accumulates no credit, so it cannot starve the others later.
    """

    def __init__(self, queues: tuple[str, ...], weights: Mapping[str, int], *, strict: bool) -> None:
        self._weights, self._strict = weights, strict
        self._served: dict[str, float] = {}
        self._asked = self.queues = queues
        self.serve(queues)

    def serve(self, queues: tuple[str, ...]) -> None:
        """Switch to these queues; new ones start level with the least-served one."""
        self._asked = self.queues = queues
        least = min(self._served.values(), default=0.0)
        self._served = {queue: self._served.get(queue, least) for queue in queues}

    def order(self) -> tuple[str, ...]:
        """The queues in the order of the next claim."""
        if not self._strict:
            self.queues = (*self.queues[1:], *self.queues[:1])  # also rotates queues that are level by weight
        if not self._weights:
            return self.queues
        self._asked = tuple(sorted(self.queues, key=lambda queue: self._served[queue]))
        return self._asked

    def claimed(self, leased: Iterable[str]) -> None:
        """Record the claimed jobs, one queue name per job, of the claim made in the latest order."""
        if not self._weights:
            return
        given = Counter(leased)
        if not given:
            return
        for queue, jobs in given.items():
            if queue in self._served:
                self._served[queue] += jobs / self._weights.get(queue, 1)
        last = max((number for number, queue in enumerate(self._asked) if queue in given), default=0)
        for queue in self._asked[:last]:  # they ran empty, so they accumulate no credit for unused slots
            self._served[queue] = max(self._served[queue], self._served[self._asked[last]])
        least = min(self._served.values())
        self._served = {queue: served - least for queue, served in self._served.items()}
