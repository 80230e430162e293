"""A group's next job is leased without being made ready first: the same jobs, in the same states, as step by step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import claim
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Exchanged, Lease, NewJob, Pause, QueueRule, Release, TaskRule, WorkerRecord

RULES = {
    "no task has a rule": [],
    "a task is apart": [TaskRule(name="u", apart=True)],
    "a task is limited": [TaskRule(name="u", limit=1)],
    "a task is trimmed": [TaskRule(name="u", retain_count=2)],
    "a task that has no jobs": [TaskRule(name="other", limit=1)],
}
START = 1_000_000.0
NUMBERED = {"turn", "fence", "token"}  # taken from a counter, of which both ways take as many numbers as they need


async def opened(path: Path) -> SqliteBackend:
    backend = SqliteBackend(str(path))
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e6), now=START)
    return backend


async def jobs_of(backend: SqliteBackend) -> list[dict[str, Any]]:
    rows = (await backend.dump()).tables["jobs"]
    return [{name: value for name, value in row.items() if name not in NUMBERED} for row in rows]


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


async def walk(backend: SqliteBackend, seed: int, rules: list[TaskRule]) -> list[Any]:
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
        job = NewJob(id=f"j{number}", task=task, group=group, priority=priority, expires=expires, key=key)
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


@pytest.mark.turn
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(8))
def test_both_ways_lead_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rules: str) -> None:
    short: list[int] = []
    real = claim.claim_heads

    def counting(*given: Any) -> list[Lease] | None:
        leases = real(*given)
        if leases:
            short.append(len(leases))
        return leases

    async def both() -> None:
        one, other = await opened(tmp_path / "one.db"), await opened(tmp_path / "other.db")
        monkeypatch.setattr(claim, "claim_heads", counting)
        first = await walk(one, seed, RULES[rules])
        monkeypatch.setattr(claim, "claim_heads", lambda *_: None)
        second = await walk(other, seed, RULES[rules])
        assert first == second
        await one.close()
        await other.close()

    asyncio.run(both())
    assert short, "the short way was never taken: nothing was compared"


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
