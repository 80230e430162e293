"""A sealed SQLite store and other writers of its file; and files made before stores could be sealed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import SCHEMA_VERSION
from holdfast.backends.sqlite.schema import migrations, statements_of
from holdfast.errors import BackendUnavailable, StoreSealed
from holdfast.records import NewJob, Seal

SEAL = Seal(move="m", role="source", other="store://there")
JOB = NewJob(id="mine", task="t", group="g")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(str(tmp_path / "jobs.db"), call_timeout=0.3)
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


def seal(backend: SqliteBackend) -> None:
    assert asyncio.run(backend.seal(SEAL, instead_of=None))


def test_an_open_transaction_that_enqueued_is_waited_for(backend: SqliteBackend) -> None:
    mine = sqlite3.connect(backend.path)
    backend.enqueue_on(mine, [JOB])
    with pytest.raises(BackendUnavailable):
        seal(backend)
    assert asyncio.run(backend.sealed()) is None
    mine.commit()
    mine.close()
    seal(backend)
    assert [job.id for job in asyncio.run(backend.export("jobs")).jobs] == ["mine"]


@pytest.mark.parametrize("isolation", ["", "IMMEDIATE", None], ids=["deferred", "immediate", "begun by hand"])
def test_a_sealed_store_refuses_the_callers_own_insert(backend: SqliteBackend, isolation: str | None) -> None:
    seal(backend)
    mine = sqlite3.connect(backend.path, isolation_level=isolation)  # type: ignore[arg-type]
    if isolation is None:
        mine.execute("BEGIN")
    with pytest.raises(StoreSealed, match="store://there"):
        backend.enqueue_on(mine, [JOB])
    mine.close()
    assert asyncio.run(backend.get("mine")) is None


def test_a_snapshot_from_before_the_seal_cannot_slip_a_job_in(backend: SqliteBackend) -> None:
    mine = sqlite3.connect(backend.path, isolation_level=None, timeout=0.1)
    mine.execute("BEGIN")
    assert mine.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (0,)  # the snapshot is taken here
    seal(backend)
    with pytest.raises(BackendUnavailable):
        backend.enqueue_on(mine, [JOB])
    mine.execute("ROLLBACK")
    mine.close()
    assert asyncio.run(backend.get("mine")) is None


def test_a_known_id_is_refused_too_so_that_nobody_takes_it_for_stored_here(backend: SqliteBackend) -> None:
    asyncio.run(backend.enqueue([JOB]))
    seal(backend)
    mine = sqlite3.connect(backend.path)
    with pytest.raises(StoreSealed):
        backend.enqueue_on(mine, [JOB])
    mine.close()


def test_a_file_of_version_1_is_brought_up_to_date_with_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        for statement in statements_of(migrations()[0][1]):
            connection.execute(statement)
        connection.execute("INSERT INTO holdfast_schema (only, version) VALUES (1, 1)")
        connection.execute(
            "INSERT INTO holdfast_jobs (id, task, queue, state, priority, lane, turn, max_stalls, created_at, due_at, "
            "args) VALUES ('old', 't', 'default', 'ready', 0, 0, 1, 3, 1, 1, '{}')".replace("'{}'", "x'7b7d'")
        )
    connection.close()

    async def run() -> None:
        backend = SqliteBackend(str(path))
        assert await backend.migrate() == (1, SCHEMA_VERSION)
        old = await backend.get("old")
        assert old is not None
        assert (old.shared_stalls, old.suspect) == (0, False)
        assert await backend.seal(SEAL, instead_of=None)
        with pytest.raises(StoreSealed):
            await backend.enqueue([JOB])
        await backend.close()

    asyncio.run(run())
