"""How many outcomes go to the store together: bounded in number and in bytes, in their order, none left behind."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Lease
from holdfast.worker.keeper.lease_renewal import BATCH_BYTES_MAX, BATCH_MAX, Ledger

MIB = 1 << 20


def ended(sizes: list[int]) -> Ledger:
    """A ledger whose handlers have all ended with values of these sizes."""
    ledger = Ledger(len(sizes), {})
    ids = [f"{number}" for number in range(len(sizes))]
    ledger.add([Lease(name, name, 1, "t", "q", b"{}") for name in ids])
    ledger.ended(
        Settlement(id=name, token=name, ending=Ending.SUCCEEDED, value=bytes(size) if size else None)
        for name, size in zip(ids, sizes, strict=True)
    )
    return ledger


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([MIB] * 20, [8, 8, 4]),
        ([20 * MIB, 1, 20 * MIB], [1, 1, 1]),
        ([1, 20 * MIB, 0, 0], [1, 1, 2]),
        ([0] * (BATCH_MAX + 5), [BATCH_MAX, 5]),
    ],
)
def test_outcomes_go_in_batches_a_slow_line_can_bring(sizes: list[int], batches: list[int]) -> None:
    ledger = ended(sizes)
    sent: list[str] = []
    found: list[int] = []
    while ledger.unsent:
        settlements, _ = ledger.take()
        found.append(len(settlements))
        sent += [one.id for one in settlements]
        assert len(settlements) == 1 or sum(len(one.value or b"") for one in settlements) <= BATCH_BYTES_MAX
    assert sent == [f"{number}" for number in range(len(sizes))]
    assert found == batches
