"""The poll of an idle worker: a claim, unless the store shows that it would find nothing.

Used by the exchange loop when no hint came for a poll interval. Polls are the truth, hints are not, so in doubt it is a
claim: if the store does not offer to tell (backends/polls.py), if that fails, and every tenth time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.contract import Backend
from ...backends.polls import TellsNothingToClaim
from .lease_renewal import LeaseRenewer
from .runners import Signals

WITHOUT_CLAIM_MAX = 9  # polls in a row: a store that is wrong about one delays a job, but not for good


class Polls:
    """Decides what a poll is."""

    def __init__(self, backend: Backend, renewal: LeaseRenewer, signals: Signals) -> None:
        self._backend = backend if isinstance(backend, TellsNothingToClaim) else None
        self._renewal, self._signals = renewal, signals
        self._call, self._without_claim = 0, 0  # polls since the claim of that number

    async def poll(self, queues: Sequence[str]) -> None:
        if self._backend is not None and await self._nothing_to_claim(self._backend, queues):
            self._signals.wake.set()  # the exchange loop shows the watchdog that it is alive
        else:
            self._signals.claim_again()

    async def _nothing_to_claim(self, backend: TellsNothingToClaim, queues: Sequence[str]) -> bool:
        if self._renewal.call != self._call:
            self._call, self._without_claim = self._renewal.call, 0
        if self._without_claim >= WITHOUT_CLAIM_MAX:
            return False
        self._without_claim += 1
        try:
            return await backend.nothing_to_claim(self._renewal.worker.id, queues)
        except Exception:  # the claim meets it, too, and reports it
            return False
