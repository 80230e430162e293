"""1,000 exhausted jobs, and the process that recovers them killed at one statement after another."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.inspection import audit
from holdfast.lifecycle import State
from holdfast.records import Answer, ClaimRequest, Held, LetterQuery, NewJob, WorkerRecord

pytestmark = pytest.mark.chaos

JOBS = 1000
NOW = 2_000_000_000.0
KILL_AT = [1, 2, 3, 5, 8, 13, 40, 90, 180, 333, 500, 700, 999]

PROGRAM = f"""
import asyncio, os, signal, sys
from holdfast.backends.sqlite import connection as module
from holdfast.backends.sqlite.backend import SqliteBackend

kill_at, seen, real = int(sys.argv[2]), 0, module.connect

def connect(*args, **options):
    connection = real(*args, **options)
    def trace(statement):
        global seen
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    connection.set_trace_callback(trace)
    return connection

module.connect = connect

async def run():
    backend = SqliteBackend(sys.argv[1])
    await backend.open()
    await backend.recover(limit=150, now={NOW} + 100)
    await backend.close()

asyncio.run(run())
"""


async def exhaust(path: Path) -> None:
    """A thousand begun at-most-once leases of a worker that will never renew."""
    backend = SqliteBackend(str(path))
    await backend.open()
    jobs = [NewJob(id=f"j{n:04d}", task="t", group=f"g{n}", key=f"k{n}", max_stalls=0) for n in range(JOBS)]
    await backend.enqueue(jobs, now=NOW)
    await backend.register(WorkerRecord(id="w", lease_seconds=30.0), now=NOW)
    got = await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=JOBS), now=NOW)
    begun = await backend.begin([Held(lease.id, lease.token) for lease in got.leases], now=NOW)
    assert begun == [Answer.OK] * JOBS
    await backend.close()


async def check(path: Path) -> tuple[int, int]:
    """(dead jobs, dead letters); each dead one has its letter, counted once, and the store is sound."""
    backend = SqliteBackend(str(path))
    await backend.open()
    counts = (await backend.count())["default"]
    letters = await backend.letters(LetterQuery(limit=2 * JOBS))
    assert (await audit(backend)).violations == []
    assert {letter.failure_count for letter in letters} <= {1}
    assert sum(counts.values()) == JOBS
    await backend.close()
    return counts.get(State.DEAD, 0), len(letters)


def test_killed_at_any_statement_it_is_done_wholly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    asyncio.run(exhaust(path))
    killed = 0
    for kill_at in KILL_AT:
        before = asyncio.run(check(path))
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(kill_at)], check=False, timeout=60)
        dead, letters = asyncio.run(check(path))
        assert dead == letters
        if done.returncode == -signal.SIGKILL:
            killed += 1
            assert dead - before[0] in (0, 150)
        else:
            assert done.returncode == 0
    assert killed >= 6
    while asyncio.run(check(path))[0] < JOBS:
        subprocess.run([sys.executable, "-c", PROGRAM, str(path), "-1"], check=True, timeout=60)
    assert asyncio.run(check(path)) == (JOBS, JOBS)
