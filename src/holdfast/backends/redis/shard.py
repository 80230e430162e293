"""The Redis store as a shard of a cluster: what jobs in other shards must hear, and what is heard from them.

Part of backend.py's `RedisBackend`; the scripts are in lua/shard.lua. Never talks to another shard: the router does.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...lifecycle import Settlement
from ...records import Answer, Enqueued, NewJob, with_conflicts_kept
from ..formulas import Numbering
from ..shard import KINDS, OUTBOX_BYTES, News, Noted, Post, PostKind, Shard, Ties, Unless
from . import codec

COPY_MARK = b"\1"  # begins the note of a copy of a dead job (lua/operate.lua); other notes are JSON
_COPY_HEAD = struct.Struct(">cI")
_COPIED = ("id", "task", "queue", "priority", "group", "max_stalls", "order")
_LETTERS: dict[PostKind, str] = dict(zip(KINDS, "jwna", strict=True))
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


class ShardVerbs(Shard):
    """The verbs of a shard, and those of the contract that they share a script with."""

    _numbering: Numbering

    @abstractmethod
    async def _run(self, verb: str, now: float | None, *values: Any) -> list[Any]: ...

    @abstractmethod
    async def _fill(self, verb: str, now: float | None, *values: Any, pieces: list[bytes]) -> Any: ...

    async def enqueue_tied(self, jobs: Sequence[NewJob], ties: Ties, now: float | None = None) -> list[Enqueued]:
        return await self._link(jobs, _ties(ties), now)

    async def _link(self, jobs: Sequence[NewJob], ties: tuple[Any, ...] | bool, now: float | None) -> list[Enqueued]:
        links, jobs = list(map(codec.link, jobs)), list(map(codec.waiting, jobs))
        values = (list(map(codec.new_job, jobs)), self._numbering, links, ties)
        letters, others = await self._fill("link", now, *values, pieces=list(map(codec.body, jobs)))
        return codec.enqueued(jobs, letters, others)

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        return await self._settle(settlement, jobs, False, now)

    async def settle_tied(
        self, settlement: Settlement, jobs: Sequence[NewJob], ties: Ties, now: float | None = None
    ) -> Answer:
        return await self._settle(settlement, jobs, _ties(ties), now)

    async def _settle(
        self, settlement: Settlement, jobs: Sequence[NewJob], ties: tuple[Any, ...] | bool, now: float | None
    ) -> Answer:
        value: list[bytes] = []
        settled = codec.settlement(settlement, value)
        stored = [codec.waiting(with_conflicts_kept(job)) for job in jobs]
        new, links = list(map(codec.new_job, stored)), list(map(codec.link, jobs))
        pieces = [*(value or [b""]), *map(codec.body, stored)]
        [letter] = await self._fill("settle_with", now, settled, new, self._numbering, links, ties, pieces=pieces)
        return codec.answers(letter)[0]

    async def watch(self, parents: Sequence[str], shard: str, now: float | None = None) -> list[News]:
        found = await self._run("watch", now, list(parents), shard)
        return [_news(one, *facts) for one, *facts in found]

    async def unwatch(self, parent: str, shard: str) -> None:
        await self._run("unwatch", None, parent, shard)

    async def follow(self, news: Sequence[News], now: float | None = None) -> None:
        told = [(one.parent, codec.LETTERS[one.state], one.task, one.tick) for one in news]
        await self._run("follow", now, told)

    async def let_go(self, parent: str, unless: Unless, now: float | None = None) -> str | None:
        [child] = await self._run("let_go", now, parent, unless)
        return child.decode() or None

    async def outbox(self, limit: int, after: int = 0) -> list[Post]:
        found = await self._run("outbox", None, limit, after, OUTBOX_BYTES)
        return [_post(*one) for one in found if one[0][:1].decode(errors="replace") in _KINDS]  # else flaws lists it

    async def delivered(self, posts: Sequence[Post]) -> None:
        await self._run("delivered", None, [(_LETTERS[one.kind] + one.name, one.tick) for one in posts])

    async def elsewhere(self, parents: Sequence[str]) -> Mapping[str, str]:
        shards = await self._run("elsewhere", None, list(parents))
        return {parent: shard.decode() for parent, shard in zip(parents, shards, strict=True) if shard}

    async def watchers(self, job_id: str) -> list[str]:
        return sorted(shard.decode() for shard in await self._run("watchers", None, job_id))


def _ties(ties: Ties) -> tuple[Any, ...]:
    joins = [(one.waiting, one.parent, one.shard) for one in ties.joins]
    notes = [(job.id, msgspec.json.encode(job).decode()) for job in ties.notes]
    return list(ties.parents.items()), joins, list(ties.watchers), notes, ties.noted


def _news(parent: bytes, state: bytes, task: bytes, tick: bytes) -> News:
    return News(parent.decode(), codec.STATES[state.decode()], task.decode(), int(tick))


def note(_: bytes, text: bytes) -> Noted:
    """Decode a noted job; raises what codec.UNREADABLE lists."""
    return _noted_copy(text) if text[:1] == COPY_MARK else msgspec.json.decode(text, type=Noted)


def _noted_copy(text: bytes) -> Noted:
    """Decode the note of a copy: the mark, a length, that many bytes of packed values, and the body."""
    _, length = _COPY_HEAD.unpack_from(text)
    end = _COPY_HEAD.size + length
    packed = zip(_COPIED, codec.unpack(text[_COPY_HEAD.size : end]), strict=True)
    args, options, _ = codec.opened(text[end:])
    values = {name: None if one is False else one for name, one in packed}
    return msgspec.convert({**values, "args": args, "options": options, "delay": 0.0}, Noted)


def _job(text: bytes) -> Noted | None:
    try:
        return note(b"", text)
    except codec.UNREADABLE:
        return None


def _post(member: bytes, score: bytes, text: bytes, shards: Sequence[bytes], *facts: bytes) -> Post:
    kind, name = _KINDS[member[:1].decode()], member[1:]
    return Post(
        kind=kind,
        name=name.decode(),
        tick=int(float(score)),
        job=_job(text) if kind == "job" else None,
        shard=text.decode() if kind == "watch" else "",
        shards=tuple(sorted(shard.decode() for shard in shards)),
        news=_news(name, *facts) if facts else None,
    )
