"""How often a process tells others of new work: at once while calls are rare, together when they follow each other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast.backends.postgres.connection import Connections
from holdfast.backends.postgres.wakeups import HINT_SECONDS_MAX, HINT_SECONDS_MIN, Wakeups


class Silent:
    """Connections over which hints go nowhere."""

    generation = 0

    def __init__(self) -> None:
        self.hints = 0

    async def call(self, *_: Any, **__: Any) -> None:
        self.hints += 1


def gaps(monkeypatch: pytest.MonkeyPatch, calls_in_each_gap: list[int]) -> tuple[list[float], int]:
    """The pauses after each hint, and the number of hints, with so many calls during each pause."""
    pauses: list[float] = []
    left = list(calls_in_each_gap)
    connections = Silent()

    async def run() -> None:
        told = Wakeups(cast(Connections, connections), "s")

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            for number in range(left.pop(0) if left else 0):
                told.tell_from_elsewhere(["q"]) if number % 2 else told.tell(["q"])

        monkeypatch.setattr("holdfast.backends.postgres.wakeups.asyncio.sleep", pause)
        told.tell(["q"])
        assert told._telling is not None
        await told._telling

    asyncio.run(run())
    return pauses, connections.hints


def test_calls_that_are_rare_are_told_a_millisecond_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, hints = gaps(monkeypatch, [1, 1, 1])
    assert (pauses, hints) == ([HINT_SECONDS_MIN] * 4, 4)


def test_the_more_calls_share_a_hint_the_later_is_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, hints = gaps(monkeypatch, [2, 3, 400, 1])
    assert hints == 5
    assert pauses == pytest.approx(
        [HINT_SECONDS_MIN, 2 * HINT_SECONDS_MIN, 3 * HINT_SECONDS_MIN, HINT_SECONDS_MAX, HINT_SECONDS_MIN]
    )
