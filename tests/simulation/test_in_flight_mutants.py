"""Do the walks with messages in flight find faults? Each is planted, and one that survives fails its test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded.lease import WorkerCalls
from holdfast.backends.sharded.places import last_number_of
from holdfast.lifecycle import Settlement
from holdfast.records import ClaimRequest, Exchanged, Held, Release, Renewal

from ..reference.backend import ReferenceBackend
from .test_in_flight import WALKS, walk_on, walk_over_shards

pytestmark = pytest.mark.timeout(600)


def _seen_by_call(self: WorkerCalls, shard: str, seen_call: int) -> int:
    return last_number_of(seen_call)


def _nothing_written_off(self: WorkerCalls, seen_call: int) -> None: ...


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"seen_at": _seen_by_call, "write_off": _nothing_written_off}, id="both"),
        pytest.param({"seen_at": _seen_by_call}, id="late leases are taken for seen"),
        pytest.param({"write_off": _nothing_written_off}, id="what is given back is handed out"),
    ],
)
def test_the_walks_find_leases_given_back_while_their_handlers_run(
    faults: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, fault in faults.items():
        monkeypatch.setattr(WorkerCalls, name, fault)
    with pytest.raises(AssertionError, match=r"runs twice at once|starts (again|before|beside)"):
        walk_over_shards(range(WALKS))


class RenewalsGiveBackWhatIsOnItsWay(ReferenceBackend):
    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        return await super().renew(worker, held, seen_call=1_000_000, portrait=portrait, now=now)


class GoesByIdAlone(ReferenceBackend):
    """Whatever token is named: the one that is current is meant."""

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        tokens = {row.id: row.token for row in self._store.jobs.values() if row.token is not None}
        own = [replace(item, token=tokens.get(item.id) or item.token) for item in self._meant(settlements)]
        back = [replace(item, token=tokens.get(item.id) or item.token) for item in self._given(releases)]
        return await super().exchange(own or settlements, back or releases, request, now)

    def _meant(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        return ()

    def _given(self, releases: Sequence[Release]) -> Sequence[Release]:
        return ()


class SettleGoesByIdAlone(GoesByIdAlone):
    def _meant(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        return settlements


class ReleaseGoesByIdAlone(GoesByIdAlone):
    def _given(self, releases: Sequence[Release]) -> Sequence[Release]:
        return releases


class LeavesAGapInAChain(ReferenceBackend):
    """The second job of a chain stays behind, leased."""

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        answer = await super().exchange(settlements, releases, request, now)
        gap = next((lease for lease in answer.leases if lease.chained), None)
        return replace(answer, leases=tuple(lease for lease in answer.leases if lease is not gap))


@pytest.mark.parametrize(
    "mutant",
    [RenewalsGiveBackWhatIsOnItsWay, SettleGoesByIdAlone, ReleaseGoesByIdAlone, LeavesAGapInAChain],
    ids=lambda mutant: mutant.__name__,
)
def test_the_walks_find(mutant: type[ReferenceBackend], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        walk_on(lambda _: mutant(), tmp_path, range(WALKS))
