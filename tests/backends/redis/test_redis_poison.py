"""One bad entry blocks nothing: whatever is written into the keys, other jobs are claimed and shown; flaws() lists it.

Each poison is put into a store with jobs before and behind the victim; then everything is looked at, and worked off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis

from holdfast import Holdfast
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import KEY_TYPES
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.rates import Rate
from holdfast.records import (
    ClaimRequest,
    CronEntry,
    JobQuery,
    LetterQuery,
    NewJob,
    QueueRule,
    Revival,
    Tick,
    WorkerRecord,
)
from tests.servers.valkey import raw

from ...servers.valkey import Server

NOW = 1_800_000_000.0
GOOD = ["good-1", "good-2", "good-g", "good-later"]

Poison = Callable[[redis.Redis, Callable[[str], str]], object]


def _record(change: Callable[[bytes], bytes], victim: str = "victim") -> Poison:
    return lambda r, k: r.hset(k("jobs"), victim, change(raw(r.hget(k("jobs"), victim))))


def _put(key: str, name: str, value: bytes) -> Poison:
    return lambda r, k: r.hset(k(key), name, value)


def _foreign(index: str, member: bytes = b"nobody", score: float = 0.0) -> Poison:
    return lambda r, k: r.zadd(k(index), {member: score})


def _every(key: str, value: bytes) -> Poison:
    return lambda r, k: [r.hset(k(key), name, value) for name in r.hkeys(k(key))]


def _meta(field: str, value: str) -> Poison:
    return lambda r, k: r.hset(k("meta"), field, value)


def _again(index: str, job_id: str, at: int) -> Poison:
    """A second member of an index that leads to a job: another number stands in these eight bytes."""

    def put(r: redis.Redis, k: Callable[[str], str]) -> None:
        [member] = [one for one in map(raw, r.zrange(k(index), 0, -1)) if one.endswith(job_id.encode())]
        r.zadd(k(index), {member[:at] + b"\0\0\0\0\0\0\0\1" + member[at + 8 :]: 0})

    return put


def _all_at(index: str, score: float) -> Poison:
    return lambda r, k: r.zadd(k(index), dict.fromkeys(map(raw, r.zrange(k(index), 0, -1)), score))


INDEXES = [name for name, kind in KEY_TYPES.items() if kind == "zset"]
NESTED = b"\x91" * 3000 + b"\xc0"  # deeper than a decoder of Python goes
PIECES = ("bodies", "values", "errors", "progress", "logs")
RANK = len(b"default\x000") + 4  # bytes of a ready job's member before its turn
POISONS: dict[str, Poison] = {
    "record of garbage": _record(lambda _: b"\xff\xfe"),
    "record empty": _record(lambda _: b""),
    "record a number": _record(lambda _: b"\x05"),
    "record cut": _record(lambda was: was[:10]),
    "record too short": _record(lambda _: b"\x92\xa6victim\xa1r"),
    "record nested": _record(lambda _: NESTED),
    "record a map": _record(lambda _: b"\x81\xa1a\x01"),
    "state unknown": _record(lambda was: was.replace(b"\xa6victim\xa1r", b"\xa6victim\xa1Z")),
    "record gone": lambda r, k: r.hdel(k("jobs"), "victim"),
    "record of a group's job gone": lambda r, k: r.hdel(k("jobs"), "victim-g"),
    "record of a waiting job gone": lambda r, k: r.hdel(k("jobs"), "victim-w"),
    "record of a scheduled job cut": _record(lambda was: was[:7], "victim-later"),
    "body gone": lambda r, k: r.hdel(k("bodies"), "victim"),
    "body short": _put("bodies", "victim", b"\0\0"),
    "body lies": _put("bodies", "victim", b"\xff" * 8 + b"{}"),
    "errors": _put("errors", "victim", b"\xff"),
    "errors nested": _put("errors", "victim", NESTED),
    "progress": _put("progress", "victim", b"\xff"),
    "logs": _put("logs", "victim", b"\xff"),
    "value gone": lambda r, k: r.hdel(k("values"), "old"),
    **{f"foreign in {index}": _foreign(index) for index in INDEXES},
    "foreign in a queue of ready": _foreign("ready", b"default\x000"),
    "foreign in a queue of apart": _foreign("apart", b"default\0nothing"),
    "foreign in a group of waiting": _foreign("waiting", b"default\0g\0"),
    **{
        f"{key} in disorder": _put(key, "default", b"\xff")
        for key in ("rules", "overrides", "pauses", "flows", "tasks")
    },
    "rules of no kind": _put("rules", "default", b"\x91\xa1x"),
    "letters": _every("letters", b"\xff"),
    "entries": _every("entries", b"\xff"),
    "worker": _put("workers", "somebody", b"\xff"),
    "busy": lambda r, k: r.hset(k("busy"), mapping={"qdefault": b"x", "tt": b"y"}),
    **{f"busy {number!r}": _put("busy", "qdefault", number) for number in (b"nan", b"-3", b"1e300", b"5", b"9" * 12)},
    **{f"tick {text}": _meta("tick", text) for text in ("nan", "inf", "x", "1e300", "9" * 20)},
    **{f"seq {text}": _meta("seq", text) for text in ("nan", "inf", "x", "-5", "1e300", "9" * 20)},
    "lease_max": _meta("lease_max", "nan"),
    "used gone": lambda r, k: r.hdel(k("meta"), "used"),
    "change of no kind": _put("changes", "zzz", b""),
    **{f"{name} of nobody": _put(name, "nobody", b"\x90") for name in (*PIECES, "calls", "portraits")},
    "ready twice": _again("ready", "victim", RANK),
    "ready twice in a group": _again("ready", "good-g", RANK),
    "waiting twice": _again("waiting", "victim-w", len(b"default\0g\0001") + 4),
    "due twice": _again("due", "good-later", 0),
    "running twice": _again("running", "runs", len(b"v\0")),
    "expiring before its time": _foreign("expiring", b"good-1"),
    "due before its time": _all_at("due", 0),
    "prunable with its letter": _foreign("prunable", b"dead"),
    "deadline before its time": _foreign("deadlines", b"w"),
    "deadline gone": lambda r, k: r.zrem(k("deadlines"), "v"),
    "remembered although it is there": _foreign("remembered", b"victim", 1e12),
    "bucket not listed": lambda r, k: r.delete(k("lapsing")),
    "group not woken": lambda r, k: r.delete(k("waking")),
    "group woken at another time": _all_at("waking", 5),
    "dead gone": lambda r, k: r.delete(k("dead")),
    "text that is not UTF-8": _record(lambda was: was.replace(b"\xa7default\xa1t", b"\xa7default\xa1\xff")),
    "calls": _put("calls", "w", b"\xc1"),
    "keyed": _put("keyed", "knobody", b"nobody"),
    "holders gone": lambda r, k: r.delete(k("holders")),
    "failed gone": lambda r, k: r.delete(k("failed")),
    "job of a letter gone": lambda r, k: r.hdel(k("jobs"), "dead"),
    "ready gone": lambda r, k: r.delete(k("ready")),
    "seqs gone": lambda r, k: r.delete(k("seqs")),
}
# An id that may be known without its job: that is what it is for. And statistics, on which no job depends.
UNSEEN = {"foreign in remembered", "foreign in minutes", "foreign in hours"}
LOST = {"ready gone": ["good-1", "good-2", "good-g"]}


async def _prepared(backend: RedisBackend) -> None:
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=3600.0), now=NOW)
    await backend.enqueue([NewJob(id="old", task="t")], now=NOW)
    [lease] = (await backend.claim(_request(1), now=NOW)).leases
    done = Settlement(id="old", token=lease.token, ending=Ending.SUCCEEDED, value=b"[1]")
    await backend.settle([done], now=NOW)
    await backend.register(WorkerRecord(id="v", lease_seconds=3600.0), now=NOW)
    await backend.enqueue([NewJob(id="runs", task="t")], now=NOW)
    await backend.claim(ClaimRequest(worker="v", call=1, queues=("default",), most=1), now=NOW)
    rated = QueueRule(name="rated", group_order="relaxed", group_limit=2, group_rate=Rate(1, 1e6))
    await backend.declare([rated, QueueRule(name="default", limit=50)], now=NOW)
    await backend.enqueue([NewJob(id=f"rated-{n}", task="t", queue="rated", group="g") for n in range(3)], now=NOW)
    await backend.claim(ClaimRequest(worker="v", call=2, queues=("rated",), most=1), now=NOW)
    revival = Revival(after=9000.0, cycles=1)
    await backend.enqueue([NewJob(id="dead", task="t", revival=revival)], now=NOW)
    await backend.bury("dead", "x", now=NOW)
    jobs = [
        NewJob(id="good-1", task="t"),
        NewJob(id="victim", task="t"),
        NewJob(id="victim-g", task="t", group="g"),
        NewJob(id="victim-w", task="t", group="g"),
        NewJob(id="victim-later", task="t", delay=1.0),
        NewJob(id="good-g", task="t", group="g2"),
        NewJob(id="good-2", task="t"),
        NewJob(id="good-later", task="t", delay=2.0),
    ]
    for job in jobs:
        await backend.enqueue([job], now=NOW)
    entry = CronEntry(name="c", every=3600.0)
    await backend.tick(Tick(name="c", version=0, entry=entry), now=NOW)


def _request(call: int) -> ClaimRequest:
    return ClaimRequest(worker="w", call=call, queues=("default",), most=3)


async def _worked_off(backend: RedisBackend) -> list[str]:
    done: list[Settlement] = []
    names: list[str] = []
    for call in range(2, 14):
        got = await backend.exchange(done, (), _request(call), now=NOW + call)
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases]
        names += [one.id for one in got.leases]
        assert len(names) == len(set(names)), "a job is leased twice"
        await backend.promote(now=NOW + call)
        await backend.refill(now=NOW + call)
        await backend.recover(now=NOW + call)
    return names


async def looked_at(backend: RedisBackend) -> None:
    assert {job.id for job in await backend.find(JobQuery(limit=50))} >= set(GOOD) or await backend.flaws()
    good = await backend.get("good-1")
    assert good is not None
    assert not good.unreadable
    await backend.get("victim")
    await backend.find(JobQuery(states=(State.READY, State.WAITING, State.SCHEDULED), limit=50))
    await backend.ended(["good-1", "victim", "old"])
    await backend.count()
    await backend.queues()
    await backend.groups()
    await backend.tasks()
    await backend.pauses()
    await backend.entries()
    await backend.workers(now=NOW)
    await backend.letters(LetterQuery())
    await backend.logs("victim")
    await backend.dump()
    await backend.wait_for_work(["default"], 0.01)


@pytest.mark.parametrize("name", POISONS)
def test_a_bad_entry_stops_nobody_and_is_listed(
    name: str, make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await _prepared(backend)
        assert await backend.flaws() == []
        POISONS[name](client, lambda key: f"{{{prefix}}}:{key}")
        await looked_at(backend)
        found = await backend.flaws()
        assert found or name in UNSEEN
        assert set(GOOD) - set(await _worked_off(backend)) <= set(LOST.get(name, ()))
        await looked_at(backend)
        await backend.prune(older_than=0.0, now=NOW + 10_000)
        await backend.prune(now=NOW + 200_000)
        await backend.promote(now=NOW + 10_000)
        await backend.close()

    asyncio.run(scenario())


def test_a_foreign_member_does_not_make_a_count_run_for_ever(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make(call_timeout=5.0)
        await backend.open()
        await backend.enqueue([NewJob(id="j", task="t")])
        for index in ("ready", "waiting", "scheduled", "apart", "finished", "running"):
            client.zadd(f"{{{prefix}}}:{index}", {b"nobody": 0, b"\xff\xff": 0})
        assert (await backend.count())["default"] == {State.READY: 1}
        await backend.close()

    asyncio.run(scenario())


def test_what_is_set_aside_is_kept_and_listed_with_its_id(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await _prepared(backend)
        client.hset(f"{{{prefix}}}:jobs", "victim", b"\xff")
        await _worked_off(backend)
        places = {flaw.place for flaw in await backend.flaws() if flaw.id == "victim"}
        assert places == {"quarantine", "jobs", "seqs"}
        shown = await backend.get("victim")
        assert shown is not None
        assert shown.unreadable == ("record",)
        await backend.close()

    asyncio.run(scenario())


def test_a_job_without_arguments_dies_alone_and_is_shown(server: Server, prefix: str, client: redis.Redis) -> None:
    joint = "&" if "?" in server.plain_url else "?"
    app = Holdfast(f"{server.plain_url}{joint}prefix={prefix}")

    @app.task(name="ok", retry=0)
    def ok(number: int = 1) -> int:
        return number

    names = ("good-1", "gone", "cut", "good-2")
    for name in names:
        ok.using(id=name).enqueue(3)
    client.hdel(f"{{{prefix}}}:bodies", "gone")
    client.hset(f"{{{prefix}}}:bodies", "cut", b"\0\0")
    app.work(drain=True)
    assert [app.job(name).state for name in names] == ["succeeded", "dead", "dead", "succeeded"]
    assert {letter.reason for letter in app.dead.list()} == {"undecodable"}
    app.close()


def test_a_group_goes_on_behind_a_job_whose_record_is_gone(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await _prepared(backend)
        client.hdel(f"{{{prefix}}}:jobs", "victim-g")
        assert "victim-w" in await _worked_off(backend)
        await backend.close()

    asyncio.run(scenario())
