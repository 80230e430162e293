"""A short outage of the store ends no wait for a result; a long one does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from holdfast import results
from holdfast.backends.contract import Backend
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, OutcomeUnknown
from holdfast.records import JobRecord
from holdfast.results import Waiter


class Store:
    """Answers each look with the next of these: an error, ids that have ended, or nothing."""

    def __init__(self, *answers: HoldfastError | str | None) -> None:
        self.answers = list(answers)
        self.looks = 0
        self.looked = asyncio.Event()

    async def ended(self, ids: Sequence[str]) -> Mapping[str, Any]:
        self.looks += 1
        self.looked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, HoldfastError):
            raise answer
        return {answer: cast(JobRecord, answer)} if answer is not None and answer in ids else {}


def wait(store: Store) -> Any:
    return asyncio.run(asyncio.wait_for(Waiter().wait("a", 60, cast(Backend, store)), 60))


@pytest.mark.parametrize("error", [BackendUnavailable("away"), OutcomeUnknown("ended")])
def test_a_waiter_keeps_waiting_through_a_short_outage(error: HoldfastError) -> None:
    store = Store(None, error, error, None, error, "a")
    assert wait(store) == "a"
    assert store.looks == 6


def test_a_new_waiter_fails_at_once_if_the_store_is_away() -> None:
    store = Store(BackendUnavailable("away"))
    with pytest.raises(BackendUnavailable):
        wait(store)
    assert store.looks == 1


def test_a_store_that_stays_away_is_everybodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PATIENCE_SECONDS", 0.05)
    store = Store(None, BackendUnavailable("away"))
    with pytest.raises(BackendUnavailable):
        wait(store)
    assert store.looks > 2


def test_another_error_is_everybodys_at_once() -> None:
    store = Store(None, BackendError("broken"))
    with pytest.raises(BackendError, match="broken"):
        wait(store)
    assert store.looks == 2


def test_during_an_outage_a_new_waiter_fails_and_earlier_ones_do_not() -> None:
    async def run() -> None:
        waiter, store = Waiter(), Store(None)
        old = asyncio.create_task(waiter.wait("a", 60, cast(Backend, store)))
        await store.looked.wait()
        store.answers = [BackendUnavailable("away")]
        with pytest.raises(BackendUnavailable):
            await waiter.wait("b", 60, cast(Backend, store))
        assert not old.done()
        store.answers = ["a"]
        assert await asyncio.wait_for(old, 60) == cast(JobRecord, "a")

    asyncio.run(run())
