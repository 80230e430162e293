"""When a node of a cluster counts as silent, tested with a simulated node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from holdfast.backends.redis import cluster as nodes
from holdfast.backends.redis.cluster import Node, Nodes
from holdfast.errors import BackendUnavailable, OutcomeUnknown

PATIENCE_SECONDS = 60.0


class Played:
    """Connections to a node that answers, is busy, is stuck (answers pings alone), hangs or is gone."""

    def __init__(self) -> None:
        self.mood = "well"
        self.calls: list[str] = []
        self.free, self.looked, self.enqueues = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.slow: float | None = None

    async def call(self, verb: str, command: bytes, **how: Any) -> str:
        self.calls.append(verb)
        if verb == "ping":
            self.looked.set()
        if verb == "enqueue":
            self.enqueues.set()
        if self.mood == "gone":
            raise BackendUnavailable("gone. Nothing to do.")
        waits = {"hangs": True, "busy": not how.get("urgent"), "stuck": verb != "ping"}
        if waits.get(self.mood):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.free.wait(), self.slow)
        await asyncio.sleep(0)
        return "answer"

    def abandon(self) -> None:
        pass


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
            await asyncio.sleep(0)  # it is looked at meanwhile, and nobody waits for that
        assert connections.calls == ["exchange", "ping", "probe"]

    asyncio.run(whole())


def test_who_has_nothing_better_to_do_waits_to_hear_whether_a_silent_node_is_back() -> None:
    async def whole() -> None:
        connections, node = played()
        connections.mood = "gone"
        with pytest.raises(BackendUnavailable, match="gone"):
            await call(node, "enqueue")
        connections.mood = "well"
        assert await call(node, "enqueue") == "answer"
        assert connections.calls == ["enqueue", "ping", "probe", "enqueue"]

    asyncio.run(whole())


def test_who_waits_is_not_refused_for_a_ping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy disk may hold a reply up for longer than a ping waits. A worker skips the node; a producer has time."""
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        with pytest.raises(BackendUnavailable):
            await node.call("map", b"", writes=False)  # which a producer makes, too, before its first call
        assert node.silent
        storing = asyncio.create_task(call(node, "enqueue"))
        await asyncio.wait({storing, asyncio.create_task(connections.enqueues.wait())}, return_when="FIRST_COMPLETED")
        connections.free.set()
        assert await storing == "answer"
        assert not node.silent  # it was heard

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_the_first_map_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones are not: the old map serves until there is a new one."""
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "REFRESH_SECONDS", 0.0)

    opens = asyncio.Event()

    class WithMap(Played):
        async def call(self, verb: str, command: bytes, **how: Any) -> Any:
            if verb == "open":
                opens.set()
            await super().call(verb, command, **how)
            return [(0, nodes.SLOTS - 1, (b"host", 7000))]

    async def whole() -> None:
        connections = WithMap()
        cluster = Nodes("redis://host:7000", prefix="p", call_timeout=600.0)
        cluster.node(("host", 7000)).connections = connections  # type: ignore[assignment]
        connections.mood = "hangs"
        reading = asyncio.create_task(cluster.refresh())
        await asyncio.wait({reading, asyncio.create_task(opens.wait())}, return_when="FIRST_COMPLETED")
        connections.free.set()
        await reading
        connections.free.clear()
        with pytest.raises(BackendUnavailable):
            await cluster.refresh()
        assert connections.calls.count("open") == 1

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_after_two_calls_that_were_given_up_the_next_producers_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "HANG_SECONDS", 0.0)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        await given_up(node, 0.01, "enqueue")
        connections.enqueues.clear()
        giving_up = asyncio.create_task(call(node, "enqueue"))
        await connections.enqueues.wait()  # the ping is not answered, and the call is made all the same
        giving_up.cancel()
        await asyncio.wait({giving_up})
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await call(node, "enqueue")
        assert connections.calls.count("enqueue") == 2

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_a_look_that_this_process_was_too_busy_for_says_nothing_about_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of the ping comes late, because nothing ran here meanwhile: it is asked again."""
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.05)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        looking = node._look()
        await connections.looked.wait()
        until = time.monotonic() + 10 * nodes.LOOK_SECONDS
        while time.monotonic() < until:
            pass  # nothing else runs
        connections.mood = "well"
        await looking
        assert not node.silent
        assert set(connections.calls) == {"ping", "probe"} and len(connections.calls) >= 4
        assert await call(node) == "answer"

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


@pytest.mark.parametrize("writes", [True, False])
def test_a_workers_call_to_a_node_that_hangs_is_given_up_when_a_look_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        with pytest.raises(OutcomeUnknown if writes else BackendUnavailable):
            await node.call("exchange", b"", writes=writes)
        assert connections.calls[0] == "exchange" and set(connections.calls[1:]) == {"ping", "probe"}
        assert node.silent
        node.abandon()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_a_workers_long_call_to_a_node_that_answers_a_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.01)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "busy"
        calling = asyncio.create_task(call(node))
        await connections.looked.wait()
        connections.free.set()
        assert await calling == "answer"
        assert not node.silent
        connections.mood = "well"
        assert await call(node) == "answer"

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


@pytest.mark.parametrize("writes", [True, False])
def test_a_workers_call_to_a_node_that_answers_pings_alone_is_given_up(
    monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "stuck"
        with pytest.raises(OutcomeUnknown if writes else BackendUnavailable):
            await node.call("exchange", b"", writes=writes)
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await call(node)
        assert connections.calls.count("exchange") == 1
        calling = asyncio.create_task(call(node, "enqueue"))  # who has nothing better to do waits
        await connections.enqueues.wait()
        connections.mood = "well"
        connections.free.set()
        assert await calling == "answer"
        while node.stuck:
            with contextlib.suppress(BackendUnavailable):
                await call(node)
            await asyncio.sleep(0)
        assert await call(node) == "answer"
        node.abandon()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_a_slow_node_gets_more_time_with_every_call_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.001)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        connections.slow = 0.05
        tries = 0
        while True:
            node.silent = False  # as after a look that was answered
            tries += 1
            try:
                assert await call(node) == "answer"
                break
            except OutcomeUnknown:
                assert tries < 20
        assert tries > 1
        node.abandon()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_producers_are_patient_with_a_node_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LONG_SECONDS", 0.0)

    async def whole() -> None:
        connections, node = played()
        connections.mood = "hangs"
        connections.slow = 0.05
        assert await call(node, "enqueue") == "answer"
        assert connections.calls == ["enqueue"]

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


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
        assert connections.calls == ["exchange", "ping", "probe"]

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
        assert connections.calls == ["exchange", "ping", "probe"]

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
