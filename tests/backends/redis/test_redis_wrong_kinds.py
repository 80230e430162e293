"""A record, rule, bucket, letter or number of a wrong type blocks nothing, and is listed by name.

Every field of a job's record gets every wrong value, in jobs of every state; then all verbs run. None fails, the good
jobs are all worked off, and what cannot be read is named with its field.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
import redis

from holdfast.backends.redis import codec
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.layouts import FIELDS
from holdfast.errors import DuplicateJob, JobNotFound, StateConflict
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.records import ClaimRequest, Held, Lease, NewJob, Report, Revival, WorkerRecord
from tests.servers.valkey import raw

from .test_redis_poison import NOW, looked_at

WRONG: list[Any] = ["x", "5", True, False, None, [], {"a": 1}, 1.5, -1, math.nan, math.inf, -math.inf, 1e300, 2**63]
WRONG_INSIDE: list[Any] = ["x", None, [], -1, math.nan, math.inf]
TERMS: list[Any] = [[True] * 6, [False, False, "x", False, False, False], [False] * 5 + [True], [1, 2, 3]]
GOOD = ["good-1", "good-2", "good-g1", "good-g2", "good-later", "good-keyed"]
KINDS = ("ready", "keyed", "grouped", "waiting", "later", "gone", "running", "done", "dead")
Keys = Callable[[str], str]


def _values(field: str) -> list[Any]:
    return WRONG + (TERMS if field == "terms" else [])


def _jobs(kind: str, number: int) -> list[NewJob]:
    group = {"grouped": f"{kind}-{number}", "waiting": f"wait-{number}"}.get(kind)
    job = NewJob(
        id=f"{kind}-{number}",
        task="t",
        group=group,
        key=f"k-{number}" if kind == "keyed" else None,
        key_window=5.0 if kind == "keyed" else None,
        delay=1.0 if kind == "later" else None,
        revival=Revival(after=5.0) if kind == "dead" else None,
    )
    first = [NewJob(id=f"first-{number}", task="t", group=group)] if kind == "waiting" else []
    return [*first, job]


def _request(worker: str, call: int, most: int = 500) -> ClaimRequest:
    return ClaimRequest(worker=worker, call=call, queues=("default",), most=most)


async def _claimed(backend: RedisBackend, worker: str, ids: Iterable[str], now: float) -> list[Lease]:
    """Leases of exactly these jobs."""
    await backend.register(WorkerRecord(id=worker, lease_seconds=1.0 if worker == "gone" else 3600.0), now=now)
    wanted = set(ids)
    leases = (await backend.claim(_request(worker, 1), now=now)).leases
    assert {lease.id for lease in leases} == wanted
    return list(leases)


async def _filled(backend: RedisBackend, number: int) -> list[Lease]:
    """Jobs of every kind, as many as there are wrong values, and good ones. Returns the running leases."""
    await backend.open()
    for kind in ("gone", "done", "running"):
        await backend.enqueue([job for n in range(number) for job in _jobs(kind, n)], now=NOW)
        leases = await _claimed(backend, kind, (f"{kind}-{n}" for n in range(number)), NOW)
        if kind == "done":
            await backend.settle([_success(lease) for lease in leases], now=NOW)
    for n in range(number):
        for kind in ("ready", "keyed", "grouped", "waiting", "later", "dead"):
            await backend.enqueue(_jobs(kind, n), now=NOW)
        await backend.bury(f"dead-{n}", "x", now=NOW)
    good = [
        NewJob(id="good-1", task="t"),
        NewJob(id="good-g1", task="t", group="g"),
        NewJob(id="good-g2", task="t", group="g"),
        NewJob(id="good-later", task="t", delay=2.0),
        NewJob(id="good-keyed", task="t", key="good"),
        NewJob(id="good-2", task="t"),
    ]
    await backend.enqueue(good, now=NOW)
    await backend.register(WorkerRecord(id="w", lease_seconds=3600.0), now=NOW)
    return leases


def _success(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED, value=b"[1]")


def _ended(lease: Lease, number: int) -> Settlement:
    """One way or another."""
    failure = Failure(at=0.0, reason="failed", text="x")
    ending = (Ending.SUCCEEDED, Ending.RETRY, Ending.BURIED, Ending.STALLED)[number % 4]
    failed = {} if ending is Ending.SUCCEEDED else {"failure": failure, "failed": True, "reason": "failed"}
    return Settlement(id=lease.id, token=lease.token, ending=ending, **failed)  # type: ignore[arg-type]


async def _worked_off(backend: RedisBackend, running: list[Lease]) -> list[str]:
    held = [Held(id=lease.id, token=lease.token) for lease in running]
    await backend.begin(held, now=NOW + 2)
    reports = [Report(id=lease.id, token=lease.token, progress=0.5, lines=("line",)) for lease in running]
    await backend.report(reports, now=NOW + 2)
    await backend.renew("running", held[::2], seen_call=1, now=NOW + 2)
    await backend.settle([_ended(lease, n) for n, lease in enumerate(running)], now=NOW + 2)
    names: list[str] = []
    done: list[Settlement] = []
    for call in range(1, 30):
        got = await backend.exchange(done, (), _request("w", call, 20), now=NOW + 2 + call)
        done = [_ended(lease, 0 if lease.id.startswith("good") else n) for n, lease in enumerate(got.leases)]
        names += [lease.id for lease in got.leases]
        assert len({one.id for one in got.leases}) == len(got.leases)
        for sweep in (backend.promote, backend.refill, backend.rearrange, backend.recover):
            await sweep(now=NOW + 2 + call)
    return names


async def _operated(backend: RedisBackend, ids: Iterable[str]) -> None:
    for job_id in ids:
        for verb in (backend.cancel, backend.run_now, backend.revive, backend.retry, backend.discard):
            try:
                await verb(job_id, now=NOW + 50)
            except (JobNotFound, StateConflict):
                continue
    for on_conflict in ("keep", "replace", "raise"):
        again = NewJob(id=f"again-{on_conflict}", task="t", key="k-0", on_conflict=on_conflict)
        with contextlib.suppress(DuplicateJob):
            await backend.enqueue([again], now=NOW + 50)


async def _swept(backend: RedisBackend) -> None:
    await backend.prune(older_than=0.0, now=NOW + 10_000)
    await backend.prune(now=NOW + 200_000)
    await backend.promote(now=NOW + 200_000)
    await backend.recover(now=NOW + 200_000)


def _changed(packed: bytes, field: str, value: Any) -> bytes:
    """The record with another value, in the form in which scripts open it: three bytes before the fields."""
    fields = msgspec.msgpack.decode(packed)
    fields[FIELDS.index(field)] = value
    return b"\xdc" + len(fields).to_bytes(2, "big") + b"".join(map(msgspec.msgpack.encode, fields))


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_wrong_kind_stops_nobody_and_is_named(
    field: str, make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend, values = make(), _values(field)
        running = await _filled(backend, len(values))
        assert await backend.flaws() == []
        expected: dict[str, set[str]] = {}
        for number, value in enumerate(values):
            for kind in KINDS:
                name = f"{kind}-{number}"
                packed = _changed(raw(client.hget(f"{{{prefix}}}:jobs", name)), field, value)
                client.hset(f"{{{prefix}}}:jobs", name, packed)
                expected[name] = set(codec.fields(name, packed)[1])
        found = await backend.flaws(limit=10_000)
        named = {(flaw.id, flaw.field) for flaw in found if flaw.place == "jobs"}
        assert named == {(name, bad) for name, some in expected.items() for bad in some}
        await looked_at(backend)
        assert set(await _worked_off(backend, running)) >= set(GOOD)
        await looked_at(backend)
        await _operated(backend, expected)
        await _swept(backend)
        await backend.close()

    asyncio.run(scenario())


# ---------------------------------------------------------------------- what is not a job's record

RATE = [10, 1.0, False]
LETTER = {
    "id": "dead-0", "task": "t", "queue": "default", "args": "{}", "failure_count": 1, "first_failed_at": NOW,
    "failed_at": NOW, "reason": "failed", "error": {"at": NOW, "reason": "failed", "text": "x"}, "history": [],
    "cycles": 0, "revive_at": NOW + 5,
}  # fmt: skip
PAUSE = {"queue": "default", "group": "still", "reason": "r", "by": "b", "paused_at": NOW}
STRUCTURES: dict[str, tuple[str, bytes, Any]] = {
    "a queue's rule": ("rules", b"default", [3, "relaxed", 5, RATE, [10, 1.0, 2], 0.5]),
    "a task's rule": ("tasks", b"t", [5, RATE, True, 5, 60.0, 5]),
    "a queue's override": ("overrides", b"qdefault", [5, RATE, False]),
    "a group's override": ("overrides", b"gdefault\0g\0", [5, RATE, False]),
    "a task's override": ("overrides", b"tt", [5, RATE, True]),
    "a queue's bucket": ("flows", b"qdefault", [NOW - 5, 0.0, False]),
    "a task's bucket": ("flows", b"tt", [NOW - 5, 0.0, False]),
    "a group's bucket": ("group_flows", b"gdefault\0g\0", [NOW - 5, 0.0, NOW - 1]),
    "a group's pause": ("pauses", b"gdefault\0still\0", PAUSE),
    "a worker's last call": ("calls", b"w", [1, "o"]),
    "a dead letter": ("letters", b"idead-0", LETTER),
    "what failed": ("errors", b"dead-0", [LETTER["error"]]),
    "progress": ("progress", b"dead-0", [0.5, "x"]),
    "log lines": ("logs", b"dead-0", [[NOW, "x"]]),
}


def _variants(whole: Any, wrong: Sequence[Any] = WRONG) -> Iterable[Any]:
    """Copies with one wrong value each, in every place, also inside."""
    if not isinstance(whole, list | dict):
        return
    for place in list(range(len(whole)) if isinstance(whole, list) else whole):
        for value in [*wrong, *_variants(whole[place], WRONG_INSIDE)]:
            copy = whole.copy()
            copy[place] = value
            yield copy


async def _one_is_worked_off(backend: RedisBackend, number: int) -> None:
    """A new job with a group and one without are claimed, whatever else there is, and the same work goes on."""
    names = {f"good-{number}", f"good-{number}-g"}
    now = NOW + 100 * number
    await backend.enqueue([NewJob(id=min(names), task="t"), NewJob(id=max(names), task="t", group="g")], now=now)
    for call in range(1, 5):
        request = ClaimRequest(worker="w", call=10 * number + call, queues=("default",), most=5)
        got = await backend.exchange((), (), request, now=now + 10 * call)
        await backend.settle([_success(lease) for lease in got.leases], now=now + 10 * call)
        names -= {lease.id for lease in got.leases}
        await backend.promote(now=now + 10 * call)
        await backend.refill(now=now + 10 * call)
        if not names:
            return
    raise AssertionError(f"{names} are not handed out")


async def _seen(backend: RedisBackend) -> None:
    await backend.queues()
    await backend.groups()
    await backend.group("default", "still")
    await backend.tasks()
    await backend.workers(now=NOW)
    await backend.wait_for_work(["default"], 0.0)
    await backend.get("dead-0")
    await backend.logs("dead-0")
    await backend.dump()


@pytest.mark.parametrize("what", STRUCTURES)
def test_a_value_of_a_wrong_kind_says_nothing_and_stops_nobody(
    what: str, make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e8), now=NOW)
        client.hset(f"{{{prefix}}}:meta", "used", "potfgd")
        for number in range(2):
            await backend.enqueue([NewJob(id=f"dead-{number}", task="t", revival=Revival(after=5.0))], now=NOW)
        key, name, whole = STRUCTURES[what]
        for number, variant in enumerate(_variants(whole)):
            try:
                client.hset(f"{{{prefix}}}:{key}", name, msgspec.msgpack.encode(variant))
                await _seen(backend)
                await _one_is_worked_off(backend, number)
                if number % 8 == 0:
                    await backend.flaws()
            except Exception as failure:
                raise AssertionError(f"{what}: {variant}") from failure
        await backend.close()

    asyncio.run(scenario())


def test_a_revival_of_a_wrong_kind_does_not_keep_a_job_from_its_death(
    make: Callable[..., RedisBackend], client: redis.Redis, prefix: str
) -> None:
    async def scenario() -> None:
        backend = make()
        await backend.open()
        whole = {"after": 5.0, "factor": 2.0, "cap": 60.0, "cycles": 3}
        for number, variant in enumerate([*WRONG, *_variants(whole)]):
            job_id = f"j-{number}"
            await backend.enqueue([NewJob(id=job_id, task="t")], now=NOW)
            body = b"\0\0\0\2\0\0\0\0{}" + msgspec.msgpack.encode(variant)
            client.hset(f"{{{prefix}}}:bodies", job_id, body)
            assert (await backend.bury(job_id, "x", now=NOW)).state == "dead", variant
        await backend.close()

    asyncio.run(scenario())
