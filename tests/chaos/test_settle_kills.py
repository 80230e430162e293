"""Processes that settle in their own transaction are killed between any two statements: the ledger stays exact."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, JobQuery, NewJob, WorkerRecord
from tests.chaos.process_scene import ProcessScene
from tests.chaos.scene import until
from tests.chaos.settling import STEPS, pay
from tests.moving.stage import fresh_url
from tests.servers import postgres

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("HOLDFAST_SETTLE_KILLS", "60"))  # per store; docs/decisions/0046 has a run of 500

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.chaos.settling"])


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_effect_is_there_once(store: str, tmp_path: Path) -> None:
    url, reader = _bank(store, tmp_path)
    conninfo = str(tmp_path / "bank.db") if store == "sqlite" else postgres.shared_server().conninfo

    async def play() -> dict[str, State]:
        backend, chance, killed, call = open_backend(url), random.Random(5), 0, 0
        await backend.open()
        dead: list[str] = []
        while killed < KILLS or await _unfinished(backend):
            if not await _unfinished(backend):
                jobs = [NewJob(id=f"{killed}-{n}", task="pay", group=f"g{n % 3}", max_stalls=1000) for n in range(10)]
                await backend.enqueue(jobs)
            call += 1
            worker = f"w{call}"
            await backend.register(WorkerRecord(id=worker, isolates=True))
            claim = ClaimRequest(worker=worker, call=1, queues=("default",), most=2)
            leases = (await backend.claim(claim)).leases
            children = [
                _processes.Process(target=pay, args=(url, conninfo, lease.id, lease.token, chance.randint(0, STEPS)))
                for lease in leases
            ]
            for child in children:
                child.start()
            for child in children:
                await asyncio.to_thread(child.join)
                assert child.exitcode == -signal.SIGKILL
                killed += 1
            dead.append(worker)
            await backend.recover(dead=dead)  # all: a server may not have noticed yet that a session's client is gone
            await backend.refill()  # as workers do: nobody is left who would tell the group that its job is over
        found = {job.id: job.state for job in await backend.find(JobQuery(limit=10_000))}
        await backend.close()
        return found

    states = asyncio.run(play())
    paid = Counter(row[0] for row in reader.execute("SELECT job FROM ledger").fetchall())
    reader.close()
    assert set(states.values()) == {State.SUCCEEDED}
    assert paid == Counter(states.keys()), "each job's effect is in the ledger exactly once"
    with Holdfast(url) as app:
        assert app.audit().violations == []


def _bank(store: str, folder: Path) -> tuple[str, Any]:
    if store == "sqlite":
        path = folder / "bank.db"
        reader: Any = sqlite3.connect(path, isolation_level=None)
        url = f"sqlite:///{path}?share=true"
    else:
        url = fresh_url("postgres", folder)
        reader = psycopg.connect(postgres.shared_server().conninfo, autocommit=True)
        reader.execute("DROP TABLE IF EXISTS ledger")
    reader.execute("CREATE TABLE ledger (job TEXT)")
    return url, reader


async def _unfinished(backend: Any) -> int:
    counts = (await backend.count()).get("default", {})
    return sum(number for state, number in counts.items() if not state.finished)


PAYS = """
import sqlite3


@app.task(name="pay", max_stalls=50)
def pay(ctx: Context, dies: str) -> None:
    connection = sqlite3.connect(f"{HERE}/jobs.db", timeout=30)
    first = not os.path.exists(f"{HERE}/died-{dies}")
    connection.execute("CREATE TABLE IF NOT EXISTS ledger (job TEXT)")
    connection.execute("INSERT INTO ledger VALUES (?)", (dies,))
    ctx.succeed("paid", connection=connection)
    open(f"{HERE}/died-{dies}", "w").close()
    if first and dies == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    connection.commit()
    note(what="committed", dies=dies)
    if first and dies == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    while dies == "lingers" and not gate_open():
        time.sleep(0.01)
    note(what="returns", dies=dies, cancelled=ctx.cancelled)
"""


def test_a_runner_that_dies_after_the_commit_has_not_crashed_the_job(stage: ProcessScene) -> None:
    """The keeper learns that the lease is over by itself: it neither stops the handler nor counts a stall."""
    path = stage.folder / "scene_app.py"
    path.write_text(path.read_text() + PAYS)
    with stage.app() as app:
        jobs = {dies: app.task_by_name("pay").enqueue(dies=dies) for dies in ("before", "after", "lingers")}
        family = stage.start("--runners", "3", "--slots", "3", "--lease", "2")
        until(partial(_has_note, stage, "committed", 3), what="all are committed")
        renewals: list[float | None] = [None, None, None]
        until(partial(_renewed, app, renewals), what="the worker has renewed its leases since")
        (stage.folder / "gate").touch()
        until(partial(_has_note, stage, "returns", 2), what="those that live return")
        assert family.stop() == 0
        found = {dies: app.job(job.id) for dies, job in jobs.items()}
        assert {job.state for job in found.values()} == {State.SUCCEEDED}
        assert {dies: job.attempts for dies, job in found.items()} == {"before": 2, "after": 1, "lingers": 1}
        assert [line["cancelled"] for line in stage.lines("returns")] == [False, False]
        assert app.audit().violations == []
    with sqlite3.connect(stage.folder / "jobs.db") as reader:
        assert sorted(row[0] for row in reader.execute("SELECT job FROM ledger")) == ["after", "before", "lingers"]


def _has_note(stage: ProcessScene, what: str, number: int) -> bool:
    return len(stage.lines(what)) >= number


def _renewed(app: Holdfast, seen: list[float | None]) -> bool:
    """Whether the worker's row has been renewed a few times since this was first asked."""
    [worker] = app.workers()
    if worker.renewed_at not in seen:
        seen.pop(0)
        seen.append(worker.renewed_at)
    return None not in seen
