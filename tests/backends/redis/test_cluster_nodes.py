"""When a node of a cluster counts as silent, shown on a node that is played."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.backends.redis import nodes
from holdfast.backends.redis.nodes import Node
from holdfast.errors import BackendUnavailable


class Played:
    """Connections to a node that answers, is busy, hangs or is gone."""

    def __init__(self) -> None:
        self.mood = "well"
        self.calls: list[str] = []

    async def call(self, verb: str, command: bytes, **how: Any) -> str:
        self.calls.append(verb)
        if self.mood == "gone":
            raise BackendUnavailable("gone. Nothing to do.")
        if self.mood == "hangs" or (self.mood == "busy" and not how.get("urgent")):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return "answer"


def played() -> tuple[Played, Node]:
    connections = Played()
    return connections, Node(("host", 7000), connections)  # type: ignore[arg-type]


async def call(node: Node, verb: str = "exchange") -> str:
    answer: str = await node.call(verb, b"", writes=True)
    return answer


async def given_up(node: Node, seconds: float, verb: str = "exchange") -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call(node, verb), seconds)


def test_calls_at_once_after_one_was_given_up_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may give up because it was busy itself: the node is asked, and nobody fails meanwhile."""
    monkeypatch.setattr(nodes, "HANG_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "busy"  # all its connections are, one more is answered
        await given_up(node, 0.01)
        connections.mood = "well"
        assert await asyncio.gather(*(call(node) for _ in range(5))) == ["answer"] * 5
        assert "ping" in connections.calls
        connections.calls.clear()
        assert await call(node) == "answer"
        assert connections.calls == ["exchange"]  # there is no doubt any more

    asyncio.run(whole())


def test_a_node_that_does_not_answer_when_looked_at_costs_the_next_ones_nothing() -> None:
    async def whole() -> None:
        connections, node = played()
        connections.mood = "gone"
        with pytest.raises(BackendUnavailable, match="gone"):
            await call(node)
        for _ in range(5):
            with pytest.raises(BackendUnavailable, match="does not answer"):
                await call(node)
        assert connections.calls == ["exchange", "ping"]

    asyncio.run(whole())


def test_a_doubted_node_that_is_gone_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "HANG_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        await given_up(node, 0.01)
        connections.mood = "gone"
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="does not answer"):
                await call(node)
        assert connections.calls == ["exchange", "ping"]

    asyncio.run(whole())


def test_callers_less_patient_than_a_look_find_out_that_a_node_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with a short lease gives its calls up sooner: the first two cost it time, the others fail at once."""
    monkeypatch.setattr(nodes, "HANG_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        for _ in range(2):
            await given_up(node, 0.01)
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await call(node)
        assert connections.calls == ["exchange", "ping"]

    asyncio.run(whole())


def test_who_ends_a_wait_says_nothing_about_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "HANG_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "busy"
        await given_up(node, 0.01, "wait_for_work")
        connections.mood = "well"
        assert await call(node) == "answer"
        assert "ping" not in connections.calls

    asyncio.run(whole())
