"""The fast paths of enqueue and exchange do what the scripts do without them, to the byte. Plain calls take them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha1
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
import redis
from msgspec import structs

from holdfast.backends.redis import backend as store
from holdfast.backends.redis.assembler import load_scripts
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import KEY_TYPES, keys_of
from holdfast.backends.redis.scripts import SCRIPTS, Script
from holdfast.errors import HoldfastError
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.rates import Rate
from holdfast.records import (
    Answer,
    ClaimRequest,
    Exchanged,
    Lease,
    NewJob,
    Override,
    Pause,
    QueueRule,
    Release,
    TaskRule,
    WorkerRecord,
)

from ...servers.valkey import Server, empty
from .test_redis_indexes import audit

START = 1_800_000_000.0
STEPS = 160
GENERAL = load_scripts(with_fast_paths=False)
PLAIN_TASK = TaskRule(name="u")

Act = Callable[[RedisBackend], Awaitable[Any]]


def _cut(script: Script) -> Script:
    """The script without what comes after its fast path."""
    head, end, _ = script.text.partition("\nuntil true\n")
    assert end
    text = f"{head}{end}return redis.error_reply('LONG this is not plain')\n"
    return replace(script, source=lambda: text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


class _Chosen(RedisBackend):
    """A backend that runs the scripts it is given."""

    scripts: ClassVar[Mapping[str, Script]] = GENERAL

    async def _run(self, verb: str, now: float | None, *values: Any, **more: Any) -> list[Any]:
        return await self._connections.run(self.scripts[verb], [now, *values], **more)


class _FastOnly(_Chosen):
    scripts: ClassVar[Mapping[str, Script]] = {
        **load_scripts(),
        "enqueue": _cut(SCRIPTS["enqueue"]),
        "exchange": _cut(SCRIPTS["exchange"]),
        "wait_for_work": _cut(SCRIPTS["wait_for_work"]),
    }


@pytest.fixture
def made(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Awaitable[Any]]]:
    """Stores on one server, their tokens made of their fences alone."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "nonce")
    monkeypatch.setattr(store, "MISSES_MAX", 10**9)
    names: list[str] = []

    async def make(kind: type[RedisBackend]) -> RedisBackend:
        names.append(f"{prefix}_{len(names)}")
        backend = kind(server.plain_url, prefix=names[-1], call_timeout=60.0)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=3600.0), now=START)
        return backend

    yield make
    for name in names:
        empty(server, name)


def _content(client: redis.Redis, prefix: str) -> set[tuple[str, Any]]:
    """Everything in the store; of the hints what they say, not when."""
    found: set[tuple[str, Any]] = set()
    for key, (name, kind) in zip(keys_of(prefix), KEY_TYPES.items(), strict=True):
        if kind == "hash":
            found |= {(name, pair) for pair in client.hgetall(key).items()}
        elif kind == "zset":
            found |= {(name, pair) for pair in client.zrange(key, 0, -1, withscores=True)}
        elif kind == "stream":
            hints: Any = client.xrange(key)
            found |= {(name, (place, *fields.items())) for place, (_, fields) in enumerate(hints)}
    return found


def _digest(client: redis.Redis, prefix: str) -> tuple[list[bytes], list[list[Any]]]:
    """What tells two contents apart, in three commands: the server's digest of each value, and what the hints say."""
    keys = dict(zip(KEY_TYPES, keys_of(prefix), strict=True))
    values = [keys[name] for name, kind in KEY_TYPES.items() if kind in ("hash", "zset")]
    streams: list[Any] = [client.xrange(keys[name]) for name, kind in KEY_TYPES.items() if kind == "stream"]
    hints = [[list(fields.items()) for _, fields in stream] for stream in streams]
    digests: list[bytes] = client.execute_command("DEBUG", "DIGEST-VALUE", *values)  # type: ignore[no-untyped-call]
    return digests, hints


def _same(client: redis.Redis, one: str, two: str, when: str) -> None:
    """Two stores have the same content. It is read, which costs fifty commands, only where the digests differ."""
    if _digest(client, one) != _digest(client, two):
        ours, theirs = _content(client, one), _content(client, two)
        raise AssertionError(f"{when}: {ours - theirs} instead of {theirs - ours}")


async def _looked(backend: RedisBackend, queues: list[str], now: float) -> float | None:
    """In how many seconds there may be work in these queues, by the fast path; the general path says the same."""
    script = "wait_for_work"
    fast, general = [await backend._connections.run(one[script], [now, queues]) for one in (SCRIPTS, GENERAL)]
    assert fast == general
    return msgspec.msgpack.decode(fast[0], type=float | None)


def _lifted(said: Override) -> Override:
    return Override(queue=said.queue, group=said.group, limit=None, rate=None)


class Walk:
    """The same steps on two stores, most of them plain."""

    def __init__(self, one: RedisBackend, two: RedisBackend, seed: int) -> None:
        self.stores = (one, two)
        self.dice = Random(seed)
        self.now, self.number, self.calls = START, 0, 0
        self.leases: list[Lease] = []
        self.buried: list[str] = []
        self.undo: Act | None = None
        self.odd = (0.02, 0.07, 0.2)[seed % 3]
        self.priorities = self.dice.choice(((0,), (0, 0, 0, 5, -1)))
        self.chains = seed % 4 > 1

    async def _both(self, act: Callable[[RedisBackend], Awaitable[Any]]) -> Any:
        answers: list[Any] = []
        for backend in self.stores:
            try:
                answers.append(await act(backend))
            except HoldfastError as refusal:
                answers.append(str(refusal))
        assert answers[0] == answers[1]
        return answers[0]

    def _is_odd(self) -> bool:
        return self.dice.random() < self.odd

    def _job(self) -> NewJob:
        self.number += 1
        odd: dict[str, Any] = {}
        if self._is_odd():
            choices: tuple[dict[str, Any], ...] = (
                {"key": "k", "on_conflict": "replace"},
                {"key": "m", "key_until": "started"},
                {"key": "m", "key_until": "started", "key_scope": "global"},
                {"key": "l", "key_window": self.dice.choice((2.0, 5000.0))},
                {"key": "o", "key_scope": "global"},
                {"on_expire": "drop", "expires": 5.0},
                {"key": "p", "wait_max": 9.0, "on_conflict": "debounce", "delay": 1.0},
                {"key": "n", "task": "v\1"},
                {"delay": 3.0},
                {"due_at": START - 5},
                {"expires": 4.0},
                {"id": f"j{self.dice.randrange(1, self.number + 1)}"},
                {"group": "a\0b"},
                {"queue": "q\1"},
                {"group": "a", "order": self.dice.choice((-3, 4))},
                {"group": "b", "max_stalls": 0},
            )
            odd = self.dice.choice(choices)
        usual = {
            "id": f"j{self.number}",
            "task": self.dice.choice(("t", "t", "u")),
            "queue": self.dice.choice(("q", "q", "r")),
            "key": self.dice.choice((None, None, None, *"klmnop")),
            "group": self.dice.choice((None, "a", "b", "c", "d")),
            "priority": self.dice.choice(self.priorities),
            "args": self.dice.choice((b"[1]", b"[1]", b"x" * 90, b"y" * 5000)),
            "options": self.dice.choice((None, None, None, b'{"timeout": 5}')),
        }
        return NewJob(**{**usual, **odd})

    async def enqueue(self) -> None:
        jobs = [self._job() for _ in range(self.dice.choice((1, 1, 1, 1, 3)))]
        await self._both(lambda backend: backend.enqueue(jobs, now=self.now))

    def _settlement(self, lease: Lease) -> Settlement:
        value = self.dice.choice((None, b"null", b"null", b"[1]"))
        retain = self.dice.choice((86400.0, 86400.0, 5.0))
        if self._is_odd():
            failure = Failure(reason="failed", text="no")
            ending = self.dice.choice((Ending.RETRY, Ending.BURIED, Ending.SNOOZED))
            if ending is Ending.BURIED:
                self.buried.append(lease.id)
            return Settlement(id=lease.id, token=lease.token, ending=ending, failed=True, delay=2.0, failure=failure)
        token = "stale" if self._is_odd() else lease.token
        return Settlement(id=lease.id, token=token, ending=Ending.SUCCEEDED, value=value, retain=retain)

    async def exchange(self) -> None:
        self.calls += 1
        self.dice.shuffle(self.leases)
        number = self.dice.randrange(0, len(self.leases) + 1)
        ending, self.leases = self.leases[:number], self.leases[number:]
        done = [self._settlement(lease) for lease in ending]
        if done and self._is_odd():
            done.append(done[0])
        back = [Release(id=lease.id, token=lease.token) for lease in self.leases if self._is_odd()]
        queues = ("q\1", "r") if self._is_odd() else self.dice.choice((("q", "r"), ("q",), ("r", "q")))
        chained = self.dice.choice((0, 1, 4, 40)) if self.chains else 0
        request = ClaimRequest(
            worker="w",
            call=self.calls,
            queues=queues,
            most=self.dice.choice((0, 1, 2, 3, 8)),
            most_by_queue=self.dice.choice(({}, {}, {"q": 1})),
            most_by_task=self.dice.choice(({}, {}, {"u": 1}, {"t": 0})),
            most_by_group=2 if self._is_odd() else None,
            bytes_max=self.dice.choice((2**22, 2**22, 6000, 100, 1)),
            sweep_max=self.dice.choice((200, 200, 1)),
            chain_by_queue={"q": self.dice.choice((2, 3, 9))} if chained else {},
            chained_max=chained,
        )
        got: Exchanged = await self._both(lambda backend: backend.exchange(done, back, request, now=self.now))
        if self._is_odd():  # its answer was lost
            less = structs.replace(request, most=max(0, request.most - 1), bytes_max=request.bytes_max // 2)
            got = await self._both(lambda backend: backend.exchange(done, back, less, now=self.now))
        self.leases += got.leases

    async def meddle(self) -> None:
        """What makes the stores unusual; the next time, what makes them usual again."""
        if not self.odd:
            return
        now, name = self.now, self.dice.choice(("a", "b"))
        if self.undo is None:
            paused, limited = Pause(queue="q", group=name), Override(queue="q", group=name, limit=0)
            relaxed, apart = QueueRule(name="q", group_order="relaxed", group_limit=2), TaskRule(name="u", limit=5)
            kept = TaskRule(name="u", retain_count=2)
            acts: tuple[tuple[Act, Act], ...] = (
                (lambda it: it.pause(paused, now=now), lambda it: it.resume(paused, now=self.now)),
                (lambda it: it.limit(limited, now=now), lambda it: it.limit(_lifted(limited), now=self.now)),
                (lambda it: it.declare([relaxed], now=now), lambda it: it.declare([QueueRule(name="q")], now=self.now)),
                (lambda it: it.declare([], [apart], now=now), lambda it: it.declare([], [PLAIN_TASK], now=self.now)),
                (lambda it: it.declare([], [kept], now=now), lambda it: it.declare([], [PLAIN_TASK], now=self.now)),
            )
            act, self.undo = self.dice.choice(acts)
            await self._both(act)
        elif self.dice.random() < 0.3:
            await self._both(self.undo)
            self.undo = None

    async def operate(self) -> None:
        if not self._is_odd():
            return
        now, job_id = self.now, f"j{self.dice.randint(0, self.number)}"
        buried = self.dice.choice(self.buried or [job_id])
        acts: tuple[Act, ...] = (
            lambda it: it.refill(now=now),
            lambda it: it.rearrange(limit=2, now=now),
            lambda it: it.slow_down("r", 1.0, now=now),
            lambda it: it.prune(now=now),
            lambda it: it.cancel(job_id, now=now),
            lambda it: it.revive(buried, now=now),
            lambda it: it.revive(buried, now=now),
        )
        await self._both(self.dice.choice(acts))

    async def step(self) -> str:
        self.now += self.dice.choice((0.0, 0.25, 1.0))
        act = self.dice.choice((*[self.enqueue] * 2, *[self.exchange] * 3, self.meddle, self.operate))
        await act()
        return act.__name__


@pytest.mark.parametrize("seed", range(36))
def test_a_store_with_fast_paths_is_the_one_without_to_the_byte(
    seed: int, made: Callable[..., Awaitable[Any]], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # a rule's own step leaves almost everything to claims
        monkeypatch.setattr(RedisBackend, "rule_step_max", 1)

    async def scenario() -> None:
        one, two = await made(RedisBackend), await made(_Chosen)
        walk = Walk(one, two, seed)
        for number in range(STEPS):
            name = await walk.step()
            _same(client, one.prefix, two.prefix, f"seed {seed}, step {number}, {name}")
            for queues in (["q"], ["r", "q"], ["q\1", "nowhere"]):
                await _looked(one, queues, walk.now)
        assert _content(client, one.prefix) == _content(client, two.prefix)
        assert audit(client, one.prefix) == []
        assert await one.flaws() == []
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_the_digest_tells_contents_apart(made: Callable[..., Awaitable[Any]], client: redis.Redis) -> None:
    async def scenario() -> None:
        one, two = await made(RedisBackend), await made(_Chosen)
        for backend in (one, two):
            await backend.enqueue([NewJob(id="j", task="t")], now=START)
            await backend.close()
        keys = dict(zip(KEY_TYPES, keys_of(one.prefix), strict=True))
        acts: list[Callable[[], object]] = [
            lambda: client.hset(keys["values"], "j", "1"),
            lambda: client.hset(keys["values"], "j", "2"),
            lambda: client.zadd(keys["due"], {"j": 1.0}),
            lambda: client.zadd(keys["due"], {"j": 1.5}),
            lambda: client.xadd(keys["wake"], {"q": "other"}),
        ]
        _same(client, one.prefix, two.prefix, "")
        seen = [_digest(client, one.prefix)]
        for act in acts:
            act()
            seen.append(_digest(client, one.prefix))
            with pytest.raises(AssertionError, match="instead of"):
                _same(client, one.prefix, two.prefix, "")
        assert all(a != b for place, a in enumerate(seen) for b in seen[:place])

    asyncio.run(scenario())


def test_a_job_does_not_pass_others_of_its_group_that_nobody_brought_into_play(
    made: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    async def scenario() -> None:
        one, two = await made(RedisBackend), await made(_Chosen)
        for backend in (one, two):
            await backend.enqueue([NewJob(id="due", task="t", group="a", delay=1.0)], now=START)
            await backend.enqueue([NewJob(id="late", task="t", group="a")], now=START + 2)
            await backend.pause(Pause(queue="default", group="b"), now=START)
            await backend.enqueue([NewJob(id="kept", task="t", group="b")], now=START)
            client.delete(f"{{{backend.prefix}}}:pauses")
            await backend.enqueue([NewJob(id="last", task="t", group="b")], now=START)
        states = [(await one.get(name)).state for name in ("due", "late", "kept", "last")]
        assert states == ["ready", "waiting", "ready", "waiting"]
        assert _content(client, one.prefix) == _content(client, two.prefix)
        await one.close()
        await two.close()

    asyncio.run(scenario())


TERMS: tuple[dict[str, Any], ...] = (
    {},
    {"key_scope": "global"},
    {"key_until": "started"},
    {"key_until": "started", "key_scope": "global"},
    {"key_until": "started", "key_window": 5000.0},
    {"key_window": 5000.0},
    {"key_window": 2.0},
    {"key_until": "started", "task": "v\1"},
    {"task": "v\1"},
    {"on_expire": "drop", "expires": 50.0},
)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_a_key_is_held_as_long_as_its_terms_say(
    terms: dict[str, Any], made: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    async def scenario() -> None:
        one, two = await made(RedisBackend), await made(_Chosen)
        job = NewJob(**{"id": "j", "task": "t", "key": "k", **terms})
        for backend in (one, two):
            await backend.enqueue([job], now=START)
            got = await backend.exchange((), (), _request(1), now=START + 1)
        assert _content(client, one.prefix) == _content(client, two.prefix)
        [lease] = got.leases
        done = Settlement(id="j", token=lease.token, ending=Ending.SUCCEEDED, retain=5.0)
        for backend in (one, two):
            await backend.exchange([done], (), _request(2), now=START + 2)
        assert _content(client, one.prefix) == _content(client, two.prefix)
        assert (await one.get("j")).state == "succeeded"
        assert audit(client, one.prefix) == []
        await one.close()
        await two.close()

    asyncio.run(scenario())


def _request(call: int) -> ClaimRequest:
    return ClaimRequest(worker="w", call=call, queues=("default",), most=1)


def test_a_caller_whose_calls_are_not_plain_tries_the_fast_path_only_now_and_then(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        backend = RedisBackend(server.plain_url, prefix=prefix)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=3600.0))
        tried: list[bool] = []
        run = backend._run

        async def noted(verb: str, now: float | None, *values: Any, **more: Any) -> list[Any]:
            tried.append(not values[-1])
            return await run(verb, now, *values, **more)

        await backend.declare([QueueRule(name="default", limit=5)])
        monkeypatch.setattr(backend, "_run", noted)
        for call in range(1, 33):
            assert (await backend.exchange((), (), _request(call))).known
        assert [place for place, one in enumerate(tried) if one] == [0, 1, 2, 16]
        await backend.declare([QueueRule(name="default")])
        for call in range(33, 37):
            await backend.exchange((), (), _request(call))
        assert tried[32:] == [True] * 4
        await backend.close()

    asyncio.run(scenario())


HELD: dict[str, Act] = {
    "limit": lambda it: it.declare([QueueRule(name="q", limit=1)], now=START),
    "rate": lambda it: it.declare([QueueRule(name="q", rate=Rate(1, 60.0))], now=START),
    "limit of a task": lambda it: it.declare([], [TaskRule(name="t", limit=1)], now=START),
    "queue is paused": lambda it: it.pause(Pause(queue="q"), now=START),
    "task is paused": lambda it: it.pause(Pause(task="t"), now=START),
    "slow-down": lambda it: it.slow_down("q", 30.0, now=START),
    "override": lambda it: it.limit(Override(queue="q", limit=1, rate=None), now=START),
}


@pytest.mark.parametrize("held", HELD)
def test_a_look_for_work_sees_what_holds_jobs_back(held: str, made: Callable[..., Awaitable[Any]]) -> None:
    async def scenario() -> None:
        backend = await made(RedisBackend)
        await HELD[held](backend)
        assert await _looked(backend, ["q"], START) is None
        for name in ("a", "b"):
            await backend.enqueue([NewJob(id=name, task="t", queue="q")], now=START)
        before = await _looked(backend, ["q"], START)
        assert (before == 0) == (held not in ("queue is paused", "task is paused", "slow-down"))
        request = ClaimRequest(worker="w", call=1, queues=("q",), most=1)
        await backend.exchange((), (), request, now=START)
        assert await _looked(backend, ["q"], START) != 0
        assert await _looked(backend, ["default"], START) != 0
        await backend.close()

    asyncio.run(scenario())


def test_a_look_for_work_sees_what_is_due_later(made: Callable[..., Awaitable[Any]], client: redis.Redis) -> None:
    async def scenario() -> None:
        backend = await made(RedisBackend)
        await backend.enqueue([NewJob(id="later", task="t", delay=9.0)], now=START)
        assert await _looked(backend, ["default"], START) == 9.0
        assert await _looked(backend, ["default"], START + 20) == 0.0
        await backend.enqueue([NewJob(id="odd", task="t", queue="q\1")], now=START)
        assert await _looked(backend, ["q\1"], START) == 0.0
        assert await _looked(backend, ["q"], START) == 9.0
        meta = f"{{{backend.prefix}}}:meta"
        client.hset(meta, "quiet_until", str(START + 3))
        assert await _looked(backend, ["q\1"], START) == 3.0
        client.hset(meta, "quiet_until", "x")
        assert await _looked(backend, ["q\1"], START) == 0.0
        await backend.close()

    asyncio.run(scenario())


def test_plain_calls_take_the_fast_path(made: Callable[..., Awaitable[Any]]) -> None:
    async def scenario() -> None:
        backend = await made(_FastOnly)
        await backend.declare([QueueRule(name="default")], [TaskRule(name="other", rate=Rate(1, 60.0))])
        done: list[Settlement] = []
        names = []
        for number in range(12):
            group, key = (None, "a", "b")[number % 3], (None, f"k{number}")[number % 2]
            assert (await backend.enqueue([NewJob(id=f"j{number}", task="t", group=group, key=key)]))[0].created
        assert not (await backend.enqueue([NewJob(id="j0", task="t")]))[0].created
        assert await backend.wait_for_work(("default", "other"), 5.0)
        for call in range(1, 9):
            request = ClaimRequest(
                worker="w", call=call, queues=("default", "other"), most=4, most_by_task={"other": 1}
            )
            got = await backend.exchange(done, (), request)
            values = (b"null", b"[1]")
            done = [
                Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED, value=values[place % 2])
                for place, one in enumerate(got.leases)
            ]
            names += [one.id for one in got.leases]
        assert sorted(names) == sorted(f"j{number}" for number in range(12))
        await backend.close()

    asyncio.run(scenario())


def test_plain_chains_take_the_short_way(made: Callable[..., Awaitable[Any]]) -> None:
    """Also while the rest of a chain is still running, and where groups were ready before."""

    async def scenario() -> None:
        backend = await made(_FastOnly)
        await backend.declare([QueueRule(name="default")])
        jobs = [NewJob(id=f"{group}{number}", task="t", group=group) for number in range(9) for group in "ab"]
        for job in jobs:
            assert (await backend.enqueue([job]))[0].created

        async def exchange(call: int, done: list[Lease], most: int = 4, chained: int = 10) -> list[Lease]:
            ends = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in done]
            chains = {"default": 4} if chained else {}
            request = ClaimRequest(
                worker="w", call=call, queues=("default",), most=most, chain_by_queue=chains, chained_max=chained
            )
            got: Exchanged = await backend.exchange(ends, (), request)
            assert list(got.answers) == [Answer.OK] * len(done)
            return list(got.leases)

        def told(leases: list[Lease]) -> list[tuple[str, bool]]:
            return [(lease.id, lease.chained) for lease in leases]

        first = await exchange(1, [])
        assert told(first) == [
            ("a0", False), ("b0", False), *((f"a{n}", True) for n in (1, 2, 3)), *((f"b{n}", True) for n in (1, 2, 3))
        ]  # fmt: skip
        part, rest = [one for one in first if one.id in ("a0", "b0", "b1")], first[2:5]
        rest += [one for one in first if one.id in ("b2", "b3")]
        assert await exchange(2, part) == []
        second = await exchange(3, rest, chained=3)  # both groups are freed, and share what may be chained
        assert told(second) == [("a4", False), ("b4", False), ("a5", True), ("a6", True), ("b5", True)]
        third = await exchange(4, second, most=1)
        assert told(third) == [("a7", False), ("a8", True)]
        fourth = await exchange(5, [], most=1)  # ready since then
        assert told(fourth) == [("b6", False), ("b7", True), ("b8", True)]
        assert await exchange(6, [*third, *fourth]) == []
        await backend.close()

    asyncio.run(scenario())
