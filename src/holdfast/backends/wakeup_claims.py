"""What a store may offer beyond the contract: to carry out a claim at the moment it would wake a waiting worker.

Implemented by Redis, used by worker/keeper/wakeup_claims.py. A worker that is woken asks for the job it was woken for,
which is a trip to the store more than needed where the store can run the claim by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Event
from typing import NamedTuple

from ..records import ClaimRequest, Exchanged


class Woken(NamedTuple):
    """What became of such a claim."""

    answer: Exchanged | None  # None: given up, or there is no reply; it may have been carried out
    hinted: bool = False  # there was a wake-up, not only the end of the time to wait for one


class ClaimsOnWakeup(ABC):
    """A store that can hold a claim back until there may be work."""

    @property
    @abstractmethod
    def awaits_wakeup(self) -> bool:
        """Whether a `wait_for_work` is under way here that nothing but a wake-up or its timeout ends."""

    @abstractmethod
    async def claim_on_wakeup(self, request: ClaimRequest, give_up: Event) -> Woken:
        """Send a claim that is carried out at the next wake-up of any queue, or when the timeout of that wait is over.

        Only while `awaits_wakeup`. Once `give_up` is set it returns, but the store may carry the claim out before or
        after that. So the caller must then repeat the call under its number, or retire the worker, before it makes
        another. R38 holds: of a call and its repeats one is carried out, in whatever order they arrive, and they all
        return its leases.
        """
