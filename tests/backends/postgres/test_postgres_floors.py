"""While an old snapshot keeps dead index entries, claims start behind them, and miss nothing for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psycopg
import pytest

from holdfast.backends.postgres import snapshots
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, Lease, NewJob, QueueRule, Release, WorkerRecord

from ...servers.postgres import Server
from .counting import counted

Make = Callable[..., PostgresBackend]
JOBS, EACH, SAMPLE = 6_000, 20, 10
PATIENCE_SECONDS = 90.0


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full look only where a test asks for it."""
    monkeypatch.setattr(snapshots, "FULL_EVERY_SECONDS", 1e9)


class Worker:
    """Claims, and settles what it claimed before."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend = backend
        self.call = 0
        self.leases: tuple[Lease, ...] = ()

    async def step(self, most: int = EACH, releases: Sequence[Release] = ()) -> list[str]:
        given_back = {one.id for one in releases}
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED)
                for one in self.leases if one.id not in given_back]  # fmt: skip
        self.call += 1
        request = ClaimRequest(worker="w", call=self.call, queues=("default",), most=most)
        self.leases = (await self.backend.exchange(done, releases, request)).leases
        return [one.id for one in self.leases]

    async def look_fully(self) -> list[str]:
        self.backend._floors._full_at = 0.0
        return await self.step()


async def working(make: Make, *, floored: bool = True) -> Worker:
    backend = make(connections=1, call_timeout=60.0)
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=6000.0))
    backend._floors.use(floored)
    return Worker(backend)


def jobs(number: int, prefix: str = "", priorities: int = 1) -> list[NewJob]:
    return [NewJob(id=f"{prefix}{n}", task="t", priority=n % priorities) for n in range(number)]


def pass_time(server: Server, schema: str) -> None:
    """Move the store's counter on by 0.3 s: floors stay 0.2 s behind it, whatever was claimed within that time."""
    with psycopg.connect(server.conninfo, autocommit=True) as other:
        other.execute(f"SELECT setval('{schema}.ticks', last_value + 300000) FROM {schema}.ticks")


@pytest.mark.parametrize("shape", ["a backlog", "priorities", "as they come"])
@pytest.mark.parametrize("floored", [True, False])
def test_what_a_claim_reads_does_not_grow_while_a_snapshot_is_held(
    make: Make, server: Server, schema: str, session: psycopg.Connection, shape: str, floored: bool
) -> None:
    total = JOBS if floored else JOBS // 3  # the others only show that it would grow

    async def run() -> tuple[int, int]:
        worker = await working(make, floored=floored)
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT txid_current()")
        if shape != "as they come":
            for part in range(0, total, 1000):
                await worker.backend.enqueue(jobs(1000, f"{part}-", 3 if shape == "priorities" else 1))

        async def read_by(steps: int) -> int:
            before = await counted(server, schema, worker.backend)
            for _ in range(steps):
                if shape == "as they come":
                    await worker.backend.enqueue(jobs(EACH, f"{worker.call}-"))
                pass_time(server, schema)
                assert len(await worker.step()) == EACH
            return (await counted(server, schema, worker.backend)).entries - before.entries

        await read_by(2)
        early = await read_by(SAMPLE)
        await read_by(total // EACH - 2 * SAMPLE - 4)
        late = await read_by(SAMPLE)
        await worker.backend.close()
        return early, late

    early, late = asyncio.run(run())
    assert (late <= 1.3 * early) is floored, (early, late)


def test_a_more_urgent_job_goes_first_at_once(make: Make) -> None:
    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(10))
        assert await worker.step(2) == ["0", "1"]
        await worker.backend.enqueue([NewJob(id="urgent", task="t", priority=7)])
        await worker.backend.enqueue([NewJob(id="trifle", task="t", priority=-7)])
        assert await worker.step(3) == ["urgent", "2", "3"]
        assert await worker.step(9) == ["4", "5", "6", "7", "8", "9", "trifle"]
        await worker.backend.close()

    asyncio.run(run())


def test_a_job_that_returns_behind_a_floor_is_found_by_the_next_full_look(
    make: Make, server: Server, schema: str
) -> None:
    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(40))
        await worker.step(10)
        with psycopg.connect(server.conninfo, autocommit=True) as connection:  # as one that committed very late
            connection.execute(f"UPDATE {schema}.jobs SET turn = 5 WHERE id = '30'")
        assert "30" not in await worker.step(10)
        assert await worker.look_fully() == ["30", *(f"{n}" for n in range(20, 30)), *(f"{n}" for n in range(31, 40))]
        await worker.backend.close()

    asyncio.run(run())


def test_a_lane_that_was_done_with_is_gone_through_again_from_where_a_full_look_ended(
    make: Make, server: Server, schema: str
) -> None:
    """As when jobs that were parked return, many of them and all with their old turns."""

    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(100))
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"UPDATE {schema}.jobs SET lane = 2, turn = seq WHERE id::integer >= 10")
            assert len(await worker.step()) == 10
            assert await worker.step() == []
            connection.execute(f"UPDATE {schema}.jobs SET lane = 0 WHERE lane = 2")
        assert await worker.step() == []
        assert await worker.look_fully() == [f"{n}" for n in range(10, 30)]
        for first in (30, 50, 70):
            assert await worker.step() == [f"{n}" for n in range(first, first + 20)]
        await worker.backend.close()

    asyncio.run(run())


def test_what_a_worker_gives_back_it_finds_again(make: Make) -> None:
    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(6))
        assert await worker.step(2) == ["0", "1"]
        back = [Release(id=one.id, token=one.token) for one in worker.leases[:1]]
        assert await worker.step(3, back) == ["0", "2", "3"]
        await worker.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 2])
def test_groups_keep_their_order_and_their_limit(make: Make, limit: int) -> None:
    async def run() -> None:
        worker = await working(make)
        if limit > 1:
            rule = QueueRule(name="default", group_limit=limit, group_order="relaxed")
            await worker.backend.declare([rule])
        await worker.backend.enqueue([NewJob(id=f"{g}{n}", task="t", group=g) for n in range(12) for g in "abc"])
        started: list[str] = []
        while ids := await worker.step():
            assert all(sum(one[0] == g for one in ids) <= limit for g in "abc")
            started += ids
        for group in "abc":
            assert [one for one in started if one[0] == group] == [f"{group}{n}" for n in range(12)]
        await worker.backend.close()

    asyncio.run(run())


def test_a_call_that_is_repeated_is_answered_as_before(make: Make) -> None:
    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(30))
        for _ in range(3):
            first = await worker.step(5)
            tokens = [one.token for one in worker.leases]
            worker.call -= 1
            assert await worker.step(5) == first
            assert [one.token for one in worker.leases] == tokens
        await worker.backend.close()

    asyncio.run(run())


def test_who_waits_sees_what_comes_and_not_what_went(make: Make) -> None:
    async def run() -> None:
        worker = await working(make)
        await worker.backend.enqueue(jobs(30))
        while await worker.step():
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await worker.backend.wait_for_work(("default",), PATIENCE_SECONDS)
        await worker.backend.enqueue([NewJob(id="new", task="t")])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker.backend.wait_for_work(("default",), 10 * PATIENCE_SECONDS)
        assert await worker.step() == ["new"]
        await worker.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("floored", [True, False])
def test_who_waits_does_not_read_what_went_while_a_snapshot_is_held(
    make: Make, server: Server, schema: str, session: psycopg.Connection, floored: bool
) -> None:
    async def run() -> int:
        worker = await working(make, floored=floored)
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT txid_current()")
        await worker.backend.enqueue(jobs(1000))
        while await worker.step():
            pass_time(server, schema)
        before = await counted(server, schema, worker.backend)
        await worker.backend.wait_for_work(("default",), 0.0)
        read = (await counted(server, schema, worker.backend)).entries - before.entries
        await worker.backend.close()
        return read

    read = asyncio.run(run())
    assert (read < 500) is floored, read


def test_floors_are_in_use_while_a_snapshot_is_held_and_no_longer(
    make: Make, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("YOUNG_SECONDS", "DEAD_ROWS_FEW", "TRANSACTIONS_MIN", "LOOK_EVERY_SECONDS"):
        monkeypatch.setattr(snapshots, name, 0)

    async def run() -> None:
        worker = await working(make, floored=False)
        session.execute("SELECT txid_current()")
        await worker.backend.prune()
        assert worker.backend._floors.current == {}
        await worker.backend.enqueue(jobs(2))
        assert await worker.step() == ["0", "1"]
        assert worker.backend._floors.current
        session.rollback()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while worker.backend._floors.current is not None:  # whoever else was there is gone soon
                await worker.backend.prune()
        await worker.backend.close()

    asyncio.run(run())


def test_floors_are_in_use_while_many_jobs_wait_for_a_vacuum(
    make: Make, server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOOK_EVERY_SECONDS", 0)
    monkeypatch.setattr(snapshots, "DEAD_JOBS_MANY", 40)

    async def run() -> None:
        worker = await working(make, floored=False)
        with psycopg.connect(server.conninfo, autocommit=True) as other:
            other.execute(f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = false)")
            await worker.backend.enqueue(jobs(20))
            await worker.step()
            await counted(server, schema, worker.backend)  # the server knows of 20 dead rows
            await worker.backend.prune()
            assert worker.backend._floors.current is None
            await worker.step()
            await counted(server, schema, worker.backend)
            await worker.backend.prune()
            assert worker.backend._floors.current == {}
            async with asyncio.timeout(PATIENCE_SECONDS):
                while worker.backend._floors.current is not None:  # another test's snapshot may be in the way
                    other.execute(f"VACUUM {schema}.jobs")
                    await worker.backend.prune()
        await worker.backend.close()

    asyncio.run(run())


def test_a_single_freed_group_goes_on_in_the_same_order_as_without_floors(make: Make, schema: str) -> None:
    async def run(prefix: str, *, floored: bool) -> list[str]:
        worker = await working(make, floored=floored)
        named = ("g", "g", "h", "g", None, "h", "g")
        await worker.backend.enqueue([NewJob(id=f"{prefix}{n}", task="t", group=one) for n, one in enumerate(named)])
        found = []
        while got := await worker.step(1):
            found += [one.removeprefix(prefix) for one in got]
        await worker.backend.retire("w")
        await worker.backend.close()
        return found

    plain = asyncio.run(run("p", floored=False))
    assert sorted(plain) == list("0123456")
    assert asyncio.run(run("f", floored=True)) == plain
