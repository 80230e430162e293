"""A group's next job, and one that is due, is leased without being made ready first: the same jobs, in the same states,
as step by step."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import claim, renew, settle
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import Leased, Transaction
from holdfast.backends.sqlite.schema import migrated_in_memory
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Lease, NewJob, Pause, QueueRule, Release, TaskRule, WorkerRecord

from .costs import NOW, fill, transaction

RULES = {
    "no task has a rule": [],
    "a task is apart": [TaskRule(name="u", apart=True)],
    "a task is limited": [TaskRule(name="u", limit=1)],
    "a task is trimmed": [TaskRule(name="u", retain_count=2)],
    "a task that has no jobs": [TaskRule(name="other", limit=1)],
}
START = 1_000_000.0
WAL_HEAD_BYTES, WAL_FRAME_BYTES = 32, 4096 + 24
NUMBERED = {"turn", "fence", "token"}  # taken from a counter, of which both ways take as many numbers as they need


async def opened(path: Path) -> SqliteBackend:
    backend = SqliteBackend(str(path))
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=START)
    return backend


async def jobs_of(backend: SqliteBackend) -> list[dict[str, Any]]:
    rows = (await backend.dump()).tables["jobs"]
    return [{name: unnumbered(value) for name, value in row.items() if name not in NUMBERED} for row in rows]


def unnumbered(value: Any) -> Any:
    """A value of a row; of failures without the fence that they name."""
    if not isinstance(value, tuple):
        return value
    return [{name: one[name] for name in one if name not in NUMBERED} for one in value]


def ended(chance: random.Random, lease: Lease) -> Settlement | Release:
    ending = chance.choice([*[Ending.SUCCEEDED] * 5, Ending.RETRY, Ending.BURIED, None])
    if ending is None:
        return Release(id=lease.id, token=lease.token, delay=chance.choice([0.0, 3.0]))
    delay = chance.choice([0.0, 2.0]) if ending is Ending.RETRY else 0.0
    return Settlement(id=lease.id, token=lease.token, ending=ending, delay=delay, failed=ending is not Ending.SUCCEEDED)


async def trade(backend: SqliteBackend, call: int, told: Sequence[Settlement | Release], most: int) -> Exchanged:
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=most)
    settlements = [one for one in told if isinstance(one, Settlement)]
    releases = [one for one in told if isinstance(one, Release)]
    return await backend.exchange(settlements, releases, request, now=START + call)


async def walk(backend: SqliteBackend, seed: int, rules: list[TaskRule], flows: float) -> list[Any]:
    """A worker's life by dice; what it saw after each step."""
    chance, seen, held = random.Random(seed), list[Any](), dict[str, Lease]()
    await backend.declare([], rules, now=START)
    if chance.random() < 0.3:
        await backend.declare([QueueRule(name="default", group_order="relaxed", group_limit=1)], now=START)
    for number in range(60):
        group = None if chance.random() < 0.05 else f"g{chance.randrange(6)}"
        expires = 20.0 if chance.random() < 0.1 else None
        key = f"k{number}" if chance.random() < 0.1 else None
        task, priority = chance.choice("tttttu"), chance.choice([0, 0, 0, 5])
        after, delay = tuple[str, ...](), None
        if number and chance.random() < flows:  # a chain, a fan-in or a delay; few of them in groups
            group = group if chance.random() < 0.1 else None
            after = tuple(sorted({f"j{chance.randrange(number)}" for _ in range(chance.choice([1, 1, 2]))}))
            delay = chance.choice([None, None, 3.0])
        job = NewJob(
            id=f"j{number}", task=task, group=group, priority=priority, expires=expires, key=key, after=after,
            delay=delay, on_parent_failure=chance.choice(["bury", "cancel", "run"]),
        )  # fmt: skip
        await backend.enqueue([job], now=START)
    for call in range(1, 60):
        if chance.random() < 0.05:
            await backend.pause(Pause(queue="default", group="g0"), now=START + call)
        if chance.random() < 0.05:
            await backend.resume(Pause(queue="default", group="g0"), now=START + call)
        if chance.random() < 0.05:
            pause = Pause(task="u")
            await (backend.pause(pause, now=START + call) if call % 2 else backend.resume(pause, now=START + call))
        chosen = [held.pop(name) for name in sorted(held) if chance.random() < 0.7]
        got = await trade(backend, call, [ended(chance, lease) for lease in chosen], chance.choice([1, 4, 20, 20, 20]))
        held.update((lease.id, lease) for lease in got.leases)
        seen.append((got.answers, sorted(lease.id for lease in got.leases), await jobs_of(backend)))
    return seen


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("flows", [0.0, 0.7], ids=["groups", "flows"])
def test_both_ways_lead_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flows: float, seed: int, rules: str
) -> None:
    short: list[bool] = []
    real = claim.claim_at_once

    def counting(*given: Any, **more: Any) -> list[Lease] | None:
        leases = real(*given, **more)
        short.extend(lease.group is not None for lease in leases or ())
        return leases

    async def both() -> None:
        one, other = await opened(tmp_path / "one.db"), await opened(tmp_path / "other.db")
        monkeypatch.setattr(claim, "claim_at_once", counting)
        first = await walk(one, seed, RULES[rules], flows)
        monkeypatch.setattr(claim, "claim_at_once", lambda *_, **__: None)
        second = await walk(other, seed, RULES[rules], flows)
        assert first == second
        await one.close()
        await other.close()

    asyncio.run(both())
    assert (not flows) in short, "the short way was never taken: nothing was compared"


def test_a_job_made_ready_by_others_goes_before_the_head(tmp_path: Path) -> None:
    """Room for one: the turn of the job that is ready is older than that of the group's next."""

    async def scene() -> None:
        backend = await opened(tmp_path / "jobs.db")
        await backend.enqueue([NewJob(id=f"a{n}", task="t", group="a") for n in range(2)], now=START)
        [first] = (await trade(backend, 1, [], 1)).leases
        await backend.enqueue([NewJob(id="b", task="t", group="b")], now=START + 1)
        done = Settlement(id=first.id, token=first.token, ending=Ending.SUCCEEDED)
        assert [lease.id for lease in (await trade(backend, 2, [done], 1)).leases] == ["b"]
        record = await backend.get("a1")
        assert record is not None
        assert record.state is State.READY
        await backend.close()

    asyncio.run(scene())


def test_finished_jobs_are_counted_whichever_way_they_were_leased(tmp_path: Path) -> None:
    async def scene() -> None:
        backend = await opened(tmp_path / "jobs.db")
        await backend.declare([], [TaskRule(name="u", retain_count=1)], now=START)
        await backend.enqueue([NewJob(id=f"u{n}", task="u", group="g") for n in range(4)], now=START)
        told: list[Settlement] = []
        for call in range(1, 6):
            leases = (await trade(backend, call, told, 4)).leases
            told = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        await backend.prune(now=START + 1000)
        assert [row["id"] for row in await jobs_of(backend)] == ["u3"]
        await backend.close()

    asyncio.run(scene())


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "by another process"])
def test_the_next_jobs_of_groups_follow_wherever_those_before_were_settled(tmp_path: Path, elsewhere: bool) -> None:
    async def scene() -> None:
        backend = await opened(tmp_path / "jobs.db")
        other = await opened(tmp_path / "jobs.db") if elsewhere else backend
        await backend.enqueue([NewJob(id=f"{g}{n}", task="t", group=g) for n in range(2) for g in "abc"], now=START)
        await backend.enqueue([NewJob(id="d", task="t")], now=START)
        leases = (await trade(backend, 1, [], 20)).leases
        assert sorted(lease.id for lease in leases) == ["a0", "b0", "c0", "d"]
        told = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]
        assert [lease.id for lease in (await trade(other, 2, told, 20)).leases] == ["a1", "b1", "c1"]
        await backend.close()
        await other.close()

    asyncio.run(scene())


@pytest.mark.parametrize("known", [True, False])
def test_a_job_is_only_read_to_find_its_group_if_it_was_not_leased_here(known: bool) -> None:
    store, leased = migrated_in_memory(), Leased()
    renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
    fill(store, [(NewJob(id=f"j{n}", task="t", group=f"g{n % 3}"), "waiting") for n in range(6)])
    found, told, read = list[list[str]](), list[Settlement](), list[str]()
    store.set_trace_callback(lambda text: read.append(text) if "DISTINCT queue, grp" in text else None)
    for call in (1, 2):
        tx = Transaction(store.cursor(), NOW, NOW, "", leased if known else None)
        if call == 1:
            for number in range(3):
                tx.touch("default", f"g{number}")
        got = claim.exchange(tx, told, [], ClaimRequest(worker="w", call=call, queues=("default",), most=9))
        found.append([lease.id for lease in got.leases])
        told = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in got.leases]
    assert found == [["j0", "j1", "j2"], ["j3", "j4", "j5"]]
    assert len(read) == (0 if known else 1)


def test_leases_that_never_end_here_are_forgotten() -> None:
    leased = Leased()
    tx = Transaction(sqlite3.connect(":memory:").cursor(), NOW, NOW, "", leased)
    for number in range(settle.LEASED_MAX + 2):
        settle.remember(tx, [Lease(id="j", token=f"{number}", task="t", queue="q", args=b"", attempt=1, fence=1)])
    assert list(leased) == [f"{settle.LEASED_MAX + 1}"]


@pytest.mark.parametrize("group", ["g", None])
def test_a_job_that_is_leased_alone_is_stored_like_one_of_many(group: str | None) -> None:
    """But by a plain UPDATE, which costs half as much as one over a list of one."""
    leased = [leased_together(most, group) for most in (1, 2)]
    (alone, by), (of_two, by_list) = [(rows[0], updates) for rows, updates in leased]
    assert alone == of_two
    assert not any("json_each" in statement for statement in by)
    assert any("json_each" in statement for statement in by_list)


def leased_together(most: int, group: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """What is stored of jobs that one claim leases, as the first of their groups; and the UPDATEs of the claim."""
    store = migrated_in_memory()
    renew.register(transaction(store), WorkerRecord(id="w", lease_seconds=1e6))
    names = [None if group is None else f"{group}{number}" for number in range(most)]
    state = "ready" if group is None else "waiting"
    fill(store, [(NewJob(id=f"j{number}", task="t", group=name), state) for number, name in enumerate(names)])
    store.execute("UPDATE holdfast_jobs SET turn = seq WHERE state = 'ready'")
    tx, updates = transaction(store), list[str]()
    for name in names:
        if name is not None:
            tx.touch("default", name)
    store.set_trace_callback(lambda text: updates.append(text) if text.startswith("UPDATE holdfast_jobs") else None)
    leases = claim.exchange(tx, [], [], ClaimRequest(worker="w", call=1, queues=("default",), most=most)).leases
    store.set_trace_callback(None)
    store.row_factory = sqlite3.Row
    rows = [dict(row) for row in store.execute("SELECT * FROM holdfast_jobs ORDER BY seq")]
    assert [(row["id"], row["token"], row["fence"]) for row in rows] == [
        (one.id, one.token, one.fence) for one in leases
    ]
    unlike = {"token", "fence", "turn", "grp"}
    return [{name: value for name, value in row.items() if name not in unlike} for row in rows], updates


def pages_written(backend: SqliteBackend) -> int:
    """Pages in the write-ahead log, of which nothing goes back into the file meanwhile."""
    return (Path(f"{backend.path}-wal").stat().st_size - WAL_HEAD_BYTES) // WAL_FRAME_BYTES


async def pages_per_trip(path: Path, jobs: Sequence[NewJob]) -> float:
    """What settling one job and leasing the next writes, when each follows the one before it."""
    backend = await opened(path)
    held = sqlite3.connect(path)  # a reader that stays: the log only grows
    held.execute("BEGIN")
    held.execute("SELECT count(*) FROM holdfast_jobs").fetchone()
    await backend.enqueue(jobs, now=START)
    told, before = list[Settlement](), 0
    for call in range(1, len(jobs) + 1):
        [lease] = (await trade(backend, call, told, 10)).leases
        assert lease.id == jobs[call - 1].id
        told = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)]
        before = before or pages_written(backend)
    written = pages_written(backend) - before
    held.close()
    await backend.close()
    return written / (len(jobs) - 1)


def test_a_hop_of_a_chain_writes_at_most_half_as_much_again_as_a_trip_of_a_group(tmp_path: Path) -> None:
    """Pages in a trip: the same on every machine. Nothing is stored that the same step takes out again."""
    ids = [f"{number:020}" for number in range(200)]
    hot = [NewJob(id=id, task="t", group="g") for id in ids]
    chain = [NewJob(id=id, task="t", after=tuple(ids[max(0, number - 1) : number])) for number, id in enumerate(ids)]
    trip = asyncio.run(pages_per_trip(tmp_path / "hot.db", hot))
    hop = asyncio.run(pages_per_trip(tmp_path / "chain.db", chain))
    assert trip < hop <= 1.5 * trip
