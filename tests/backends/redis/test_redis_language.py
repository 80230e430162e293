"""A server that runs in another language than C: Lua then compares text by that language, the indexes by bytes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.redis.backend import RedisBackend
from holdfast.records import NewJob, Override, Pause, QueueRule

from ...servers.valkey import Server, own_server

PLAYING, WAITING = "acegik", "BDFHJL"


@pytest.fixture
def english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for which b comes after A and before C."""
    program = shutil.which("localedef")
    if program is None:
        pytest.skip("no localedef")
    made = subprocess.run(
        [program, "-i", "en_US", "-f", "UTF-8", str(tmp_path / "en_US.UTF-8")], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no sources of languages")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    for server in own_server():
        with server.client() as client:
            if client.eval("return 'a' < 'B' and 1 or 0", 0) != 1:
                pytest.skip("this server does not take up a language")
        yield server


def test_the_sweep_reaches_every_group_in_any_language(english: Server) -> None:
    async def scenario() -> None:
        backend = RedisBackend(english.plain_url)
        await backend.open()
        await backend.declare([QueueRule(name="q")])
        for name in WAITING:
            await backend.pause(Pause(queue="q", group=name))
        await backend.enqueue([NewJob(id=name, task="t", queue="q", group=name) for name in PLAYING + WAITING])
        with english.client() as somebody:  # the client that resumed the groups died before the refill
            somebody.delete(f"{{{backend.prefix}}}:pauses")
        made = 0
        for _ in range(5):  # one round over all groups
            made += await backend.refill(limit=3)
        assert made == len(WAITING)
        await backend.close()

    asyncio.run(scenario())


def test_groups_are_listed_by_bytes_in_any_language(english: Server) -> None:
    async def scenario() -> None:
        backend = RedisBackend(english.plain_url)
        await backend.open()
        await backend.enqueue([NewJob(id=name, task="t", queue="q", group=name) for name in PLAYING])
        for name in WAITING:
            await backend.limit(Override(queue="q", group=name, limit=1))
        names = [group.name for group in await backend.groups("q", limit=50)]
        assert names == sorted(PLAYING + WAITING)
        await backend.close()

    asyncio.run(scenario())
