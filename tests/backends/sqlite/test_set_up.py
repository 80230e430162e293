"""Opening the file: what is created, migrated, refused; before a byte is written where it is refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.backends.sqlite import schema
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import SCHEMA_VERSION, connect, errors_mapped, schema_version
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, SchemaMismatch
from holdfast.records import ClaimRequest, NewJob, WorkerRecord


def set_up(path: Path, share: bool = False) -> tuple[int, int]:
    return schema.set_up(str(path), synchronous="FULL", share=share, seconds=5.0)


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return names


def test_a_file_that_another_is_just_setting_up_is_waited_for(tmp_path: Path) -> None:
    """Before it is in write-ahead mode a writer locks readers out: even the first look must be patient."""
    path = tmp_path / "jobs.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, other.execute, ["ROLLBACK"])
    release.start()
    assert set_up(path) == (0, SCHEMA_VERSION)
    release.join()
    other.close()


def test_a_rival_that_sets_the_file_up_between_two_reads_is_no_other_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "jobs.db", schema_version

    def read_and_be_overtaken(connection: sqlite3.Connection) -> int | None:
        version = read(connection)
        monkeypatch.setattr(schema, "schema_version", read)
        set_up(path)
        return version

    monkeypatch.setattr(schema, "schema_version", read_and_be_overtaken)
    assert set_up(path) == (0, SCHEMA_VERSION)


def test_a_new_file_gets_the_whole_schema_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    assert set_up(path) == (0, SCHEMA_VERSION)
    assert "holdfast_jobs" in tables(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_our_connections_wait_for_the_disk_by_default(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    connection = connect(str(path))
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


def test_migrating_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    before = path.read_bytes()
    assert set_up(path) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert path.read_bytes() == before


def _migrate_at_the_signal(path: str, barrier: object) -> None:
    barrier.wait(30)  # type: ignore[attr-defined]
    schema.set_up(path, synchronous="FULL", share=False, seconds=20.0)


def test_six_processes_migrating_at_once_make_one_schema(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(6)
    processes = [spawn.Process(target=_migrate_at_the_signal, args=(str(path), barrier)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert set_up(path) == (SCHEMA_VERSION, SCHEMA_VERSION)


@pytest.mark.parametrize("after", range(0, 20, 3))
def test_a_migration_killed_between_two_statements_leaves_nothing_half_done(tmp_path: Path, after: int) -> None:
    path = tmp_path / "jobs.db"
    program = f"""
import os, signal, sqlite3
from holdfast.backends.sqlite import schema
whole = schema.statements_of
def some(text):
    statements = whole(text)
    for number, statement in enumerate(statements):
        if number == {after}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield statement
schema.statements_of = some
schema.set_up({str(path)!r}, synchronous="FULL", share=False, seconds=5.0)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert set_up(path) == (0, SCHEMA_VERSION)
    assert "holdfast_letters" in tables(path)


def test_a_newer_schema_is_refused_on_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE holdfast_schema SET version = 99")
    connection.close()
    with pytest.raises(SchemaMismatch) as caught:
        asyncio.run(SqliteBackend(str(path)).open())
    assert (caught.value.found, caught.value.expected) == (99, SCHEMA_VERSION)
    with pytest.raises(SchemaMismatch):
        connect(str(path))


def test_a_worker_already_open_notices_a_newer_schema_on_its_next_connection(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def run() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE holdfast_schema SET version = 99")
        connection.close()
        with pytest.raises(SchemaMismatch):
            await backend.enqueue([NewJob(id="a", task="t")])
        await backend.close()

    asyncio.run(run())


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        set_up(path)
    assert path.read_text() == "dear diary, " * 100


def test_someone_elses_database_is_refused_unless_sharing_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"orders.*share=true"):
        set_up(path)
    assert path.read_bytes() == before
    assert set_up(path, share=True) == (0, SCHEMA_VERSION)
    assert {"orders", "holdfast_jobs"} <= tables(path)
    assert set_up(path) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16'")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.close()
    with pytest.raises(ConfigurationError, match="UTF-8"):
        set_up(path, share=True)


def test_a_missing_folder_a_folder_and_memory_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Create it first"):
        set_up(tmp_path / "none" / "jobs.db")
    with pytest.raises(ConfigurationError, match="is a folder"):
        set_up(tmp_path)
    with pytest.raises(ConfigurationError, match="memory://"):
        schema.check_path(":memory:")


def test_a_network_file_system_is_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\nserver:/x /srv/share\\040d nfs4 rw 0 0\n")
    assert schema.file_system_of("/srv/share d/jobs", str(mounts)) == "nfs4"
    assert schema.file_system_of("/srv/other", str(mounts)) == "ext4"
    assert "nfs4" in schema.NETWORK_FILE_SYSTEMS


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "file_system_of", lambda folder: "nfs4")
    with pytest.raises(ConfigurationError, match="network file system"):
        set_up(tmp_path / "jobs.db")
    assert not (tmp_path / "jobs.db").exists()


def test_a_read_only_file_gives_a_sentence_and_no_driver_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(BackendError, match="read-only"), errors_mapped(str(path)):
        connection.execute("DELETE FROM holdfast_jobs")
    connection.close()


def test_a_lock_held_by_another_process_gives_unavailable_not_a_driver_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def run() -> None:
        backend = SqliteBackend(str(path), call_timeout=0.2)
        await backend.open()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendUnavailable, match="lock"):
            await backend.enqueue([NewJob(id="a", task="t")])
        other.execute("ROLLBACK")
        other.close()
        assert (await backend.enqueue([NewJob(id="a", task="t")]))[0].created
        await backend.close()

    asyncio.run(run())


def test_an_unknown_synchronous_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="FULL"):
        SqliteBackend("jobs.db", synchronous="OFF")


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE holdfast_schema SET version = 'abc'", 0),
        ("UPDATE holdfast_schema SET version = NULL", 0),
        ("UPDATE holdfast_schema SET version = -7", 0),
        ("DELETE FROM holdfast_schema", 0),
        ("UPDATE holdfast_schema SET version = 1", 1),
        ("UPDATE holdfast_schema SET version = 3", 3),
        ("UPDATE holdfast_schema SET version = 99", 99),
    ],
)
def test_a_wrong_schema_number_is_a_schema_mismatch(tmp_path: Path, damage: str, found: int) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(damage)
    connection.close()
    for share in (False, True):
        with pytest.raises(SchemaMismatch) as caught:
            set_up(path, share=share)
        assert caught.value.found == found
    with pytest.raises(SchemaMismatch):
        connect(str(path))


@pytest.mark.parametrize("damage", ["DROP TABLE holdfast_rearranging", "DROP INDEX holdfast_jobs_ready"])
def test_a_number_that_lies_about_the_tables_is_a_schema_mismatch(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "jobs.db"
    set_up(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(damage)
    connection.close()

    async def look() -> None:
        backend = SqliteBackend(str(path))
        await backend.open()
        try:
            await backend.register(WorkerRecord(id="w"))
            await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=1))
        finally:
            await backend.close()

    with pytest.raises(SchemaMismatch, match="holdfast_"):
        asyncio.run(look())
