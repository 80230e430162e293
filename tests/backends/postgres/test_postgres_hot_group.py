"""Workers that share one busy group do not wait for each other's commits, and never exceed its limit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import codec
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.codec import encoded, outcomes
from holdfast.backends.postgres.schema import for_schema
from holdfast.errors import BackendUnavailable
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, Lease, NewJob, Override, Pause, QueueRule, WorkerRecord

Make = Callable[..., PostgresBackend]
LIMIT = 2
CALL_SECONDS = 2.0  # who would wait for a rival's commit, which does not come, fails after this
GROUP = "hot"


def ended(leases: Sequence[Lease]) -> list[Settlement]:
    return [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in leases]


def asked(worker: str, call: int, most: int = 1) -> ClaimRequest:
    return ClaimRequest(worker=worker, call=call, queues=("default",), most=most)


def exchange_in(
    session: psycopg.Connection, schema: str, done: Sequence[Lease], request: ClaimRequest
) -> tuple[Lease, ...]:
    """A rival's exchange in a transaction that stays open."""
    told = outcomes(ended(done))
    values: dict[str, Any] = {
        "successes": told.successes, "settlements": told.others, "releases": "[]", "request": encoded(request),
        "nonce": secrets.token_hex(8), "careful": False, "now": None,
    }  # fmt: skip
    row = session.execute(for_schema(schema)["exchange.call"], values).fetchone()
    assert row is not None
    return codec.as_exchanged(codec.read_exchanged(row[0]), row[1] or b"", told.places)[0].leases


async def opened(make: Make) -> tuple[PostgresBackend, list[Lease]]:
    """A group with a long backlog, and two workers that have one of its jobs each."""
    backend = make(connections=1, call_timeout=CALL_SECONDS)
    await backend.open()
    await backend.declare([QueueRule(name="default", group_limit=LIMIT, group_order="relaxed")])
    await backend.enqueue([NewJob(id=f"{n}", task="t", group=GROUP) for n in range(20)])
    leases: list[Lease] = []
    for worker in ("a", "b"):
        await backend.register(WorkerRecord(id=worker))
        leases += (await backend.exchange([], [], asked(worker, 1))).leases
    assert [lease.id for lease in leases] == ["0", "1"]
    return backend, leases


async def in_play(backend: PostgresBackend) -> int:
    counts = (await backend.group("default", GROUP)).counts
    return counts.get(State.READY, 0) + counts.get(State.RUNNING, 0)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_worker_goes_on_in_a_group_while_a_rivals_exchange_is_not_committed(
    make: Make, session: psycopg.Connection, schema: str, how: str
) -> None:
    async def run() -> None:
        backend, (first, second) = await opened(make)
        [next_of_a] = exchange_in(session, schema, [first], asked("a", 2))
        for call in range(2, 6):
            [second] = (await backend.exchange(ended([second]), [], asked("b", call))).leases
            assert await in_play(backend) == LIMIT
        getattr(session, how)()
        assert next_of_a.id == "2"
        assert await in_play(backend) == LIMIT
        assert second.id == "6"  # 2 was the rival's
        await backend.close()

    asyncio.run(run())


def test_a_settlement_that_comes_too_late_makes_no_room(make: Make, session: psycopg.Connection, schema: str) -> None:
    """One place of the group is empty; two say once more that a job ended, while the other place is being swapped."""

    async def run() -> None:
        backend, (first, second) = await opened(make)
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = '2' FOR UPDATE")
        await backend.settle(ended([second]))
        session.rollback()
        assert await in_play(backend) == 1
        exchange_in(session, schema, [first], asked("a", 2))
        for call in (2, 3):
            assert not (await backend.exchange(ended([second]), [], asked("b", call))).leases
        session.commit()
        assert await in_play(backend) == 1
        assert await backend.refill() == 1
        assert await in_play(backend) == LIMIT
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("what", ["enqueue", "limit", "pause"])
def test_who_may_add_to_a_group_waits_for_those_who_swap(
    make: Make, session: psycopg.Connection, schema: str, what: str
) -> None:
    async def run() -> None:
        backend, (first, _) = await opened(make)
        exchange_in(session, schema, [first], asked("a", 2))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": lambda: backend.enqueue([NewJob(id="new", task="t", group=GROUP)]),
            "limit": lambda: backend.limit(Override(queue="default", group=GROUP, limit=1)),
            "pause": lambda: backend.pause(Pause(queue="default", group=GROUP)),
        }
        with pytest.raises(BackendUnavailable):
            await calls[what]()
        session.commit()
        await calls[what]()
        assert await in_play(backend) == LIMIT
        await backend.close()

    asyncio.run(run())


def test_the_sweep_does_not_wait_for_a_group_that_is_full(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run() -> None:
        backend, _ = await opened(make)
        await backend.enqueue([NewJob(id=f"other{n}", task="t", group="other") for n in range(4)])
        stripe = f"SELECT pg_advisory_xact_lock(hashtext('\"{schema}\".groups'), hashtext('default/{GROUP}') & 1023)"
        session.execute(stripe)
        assert await backend.refill() == 0
        session.rollback()
        await backend.close()

    asyncio.run(run())
