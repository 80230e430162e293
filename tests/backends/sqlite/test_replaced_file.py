"""A file that is deleted, moved or replaced under a live process: noticed before anything is acknowledged."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import BackendUnavailable, StoreReplaced
from holdfast.records import NewJob


def _delete(path: Path) -> None:
    path.unlink()


def _move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def _replace(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


DEEDS: dict[str, Callable[[Path], None]] = {"deleted": _delete, "moved": _move, "replaced": _replace}


def modes(folder: Path) -> dict[str, int]:
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}


async def opened(path: Path) -> SqliteBackend:
    backend = SqliteBackend(str(path), synchronous="NORMAL")
    await backend.open()
    await backend.enqueue([NewJob(id="first", task="t")])
    assert await backend.get("first") is not None
    return backend


@pytest.mark.parametrize("what", DEEDS)
def test_nothing_is_acknowledged_once_the_file_is_another(tmp_path: Path, what: str) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        backend = await opened(path)
        DEEDS[what](path)
        for _ in range(3):
            with pytest.raises(StoreReplaced, match="replaced" if what == "replaced" else "deleted or moved") as caught:
                await backend.enqueue([NewJob(id="lost", task="t")])
            assert caught.value.gone is (what != "replaced")
            with pytest.raises(StoreReplaced):
                backend.enqueue_here([NewJob(id="lost", task="t")])
            with pytest.raises(StoreReplaced):
                await backend.get("first")
            with pytest.raises(StoreReplaced), sqlite3.connect(path.with_name("own.db")) as connection:
                backend.enqueue_on(connection, [NewJob(id="lost", task="t")])
        assert path.exists() is (what == "replaced"), "no empty file takes its place"
        await backend.close()

    asyncio.run(main())


def test_the_file_put_back_is_used_again(tmp_path: Path) -> None:
    path, away = tmp_path / "jobs.db", tmp_path / "away.db"

    async def main() -> None:
        backend = await opened(path)
        path.rename(away)
        with pytest.raises(BackendUnavailable):
            await backend.enqueue([NewJob(id="early", task="t")])
        away.rename(path)
        await backend.enqueue([NewJob(id="late", task="t")])
        assert [await backend.get(name) is not None for name in ("first", "early", "late")] == [True, False, True]
        await backend.close()

    asyncio.run(main())


def test_a_new_start_takes_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        backend = await opened(path)
        await backend.close()  # nobody has it open: its log is in the file
        _replace(path)
        await backend.open()
        await backend.enqueue([NewJob(id="late", task="t")])
        assert await backend.get("first") is not None
        await backend.close()

    asyncio.run(main())


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_files_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> dict[str, int]:
        before = os.umask(0)
        try:
            backend = await opened(path)
        finally:
            os.umask(before)
        found = modes(tmp_path)
        await backend.close()
        return found

    assert asyncio.run(main()) == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch(0o660)
    path.chmod(0o660)
    asyncio.run(SqliteBackend(str(path)).migrate())
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
