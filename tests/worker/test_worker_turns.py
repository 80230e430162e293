"""The order in which a worker claims from its queues."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.errors import ConfigurationError
from holdfast.options import WorkerOptions
from holdfast.worker.keeper.store_client import QueueRotation


def test_without_weights_each_queue_is_first_in_turn() -> None:
    turns = QueueRotation(("a", "b", "c"), {}, strict=False)
    assert [turns.order()[0] for _ in range(6)] == ["b", "c", "a", "b", "c", "a"]


def test_a_strict_order_never_changes() -> None:
    turns = QueueRotation(("b", "a"), {}, strict=True)
    for _ in range(3):
        assert turns.order() == ("b", "a")
        turns.claimed(["b"])


def serve(turns: QueueRotation, backlog: Counter[str], claims: int, slots: int) -> Counter[str]:
    """Claims of this many slots from these backlogs, filled in the requested order."""
    given: Counter[str] = Counter()
    for _ in range(claims):
        leased: list[str] = []
        for queue in turns.order():
            jobs = min(backlog[queue], slots - len(leased))
            leased += [queue] * jobs
            backlog[queue] -= jobs
        turns.claimed(leased)
        given.update(leased)
    return given


@pytest.mark.parametrize("slots", [1, 3, 10])
def test_weights_are_shares_of_jobs_however_many_a_claim_brings(slots: int) -> None:
    turns = QueueRotation(("mail", "pdf", "rest"), {"mail": 3, "pdf": 2}, strict=False)
    given = serve(turns, Counter(mail=10**6, pdf=10**6, rest=10**6), 600, slots)
    total = given.total()
    assert given["mail"] / total == pytest.approx(3 / 6, abs=0.02)
    assert given["pdf"] / total == pytest.approx(2 / 6, abs=0.02)


def test_a_queue_that_had_nothing_keeps_no_credit() -> None:
    turns = QueueRotation(("mail", "pdf"), {"mail": 3}, strict=False)
    serve(turns, Counter(mail=10**6), 1000, 1)
    given = serve(turns, Counter(mail=10**6, pdf=10**6), 40, 1)
    assert given["pdf"] == pytest.approx(10, abs=1)


def test_other_queues_can_be_served_from_now_on() -> None:
    turns = QueueRotation(("a", "b"), {"a": 2}, strict=False)
    serve(turns, Counter(a=100, b=100), 30, 1)
    turns.claimed(["gone"])
    turns.serve(("b", "c"))
    assert set(turns.order()) == {"b", "c"}
    turns.claimed(["c"])
    assert turns.order()[0] == "b"


def test_orders_and_weights_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        WorkerOptions(queues=["a"], weights={"a": 2}, queue_order="strict")
    with pytest.raises(ConfigurationError, match="needs queues="):
        WorkerOptions(queue_order="strict")
    with pytest.raises(ConfigurationError, match="not among queues="):
        WorkerOptions(queues=["a"], weights={"b": 2})
    for wrong in ({"weights": {"a": 0}}, {"task_slots": {"a": 0}}, {"group_slots": 0}, {"weights": ["a"]}):
        with pytest.raises(ConfigurationError):
            WorkerOptions(**wrong)
