"""Sandboxes, inline drains and eager blocks used in ways nobody recommends."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from holdfast import Context, Holdfast
from holdfast.errors import JobNotFound
from holdfast.testing import Sandbox, sandbox

from ..servers.postgres import shared_server


def made(name: str) -> Holdfast:
    app = Holdfast("postgresql://nobody@nowhere.invalid/shop")

    @app.task(name="note")
    def note(ctx: Context, n: int) -> str:
        return f"{name} {n} in {threading.current_thread().name}"

    return app


@pytest.fixture
def app() -> Holdfast:
    return made("app")


@pytest.fixture
def box(app: Holdfast) -> Iterator[Sandbox]:
    with sandbox(app) as box:
        yield box


def numbers(box: Sandbox) -> list[int]:
    return [job.args["n"] for job in box.enqueued("note")]


def test_one_connection_in_two_apps_and_in_nested_sandboxes(tmp_path: Path) -> None:
    one, two = made("one"), made("two")
    engine = create_engine("sqlite://", poolclass=StaticPool)
    raw, session = sqlite3.connect(tmp_path / "own.db"), Session(engine)
    for mine in (raw, session):
        with sandbox(one) as outer, sandbox(two) as other:
            one.tasks["note"].using(connection=mine).enqueue(1)
            two.tasks["note"].using(connection=mine).enqueue(2)
            with sandbox(one) as inner:
                one.tasks["note"].using(connection=mine).enqueue(3)
                mine.commit()
                assert (numbers(inner), inner.pending()) == ([3], [])
            assert (numbers(outer), numbers(other)) == ([1], [2])
            one.tasks["note"].using(connection=mine).enqueue(4)
            two.tasks["note"].using(connection=mine).enqueue(5)
            assert (len(outer.pending()), len(other.pending())) == (1, 1)
            mine.rollback()
            assert (outer.pending(), other.pending()) == ([], [])
            assert (numbers(outer), numbers(other)) == ([1], [2])
        mine.close()
    engine.dispose()


def test_hundreds_of_jobs_in_one_transaction(box: Sandbox) -> None:
    note = box.app.tasks["note"]
    with psycopg.connect(shared_server().conninfo) as connection:
        for n in range(100):
            note.using(connection=connection).enqueue(n)
        made = box.app.enqueue_many(note.using(connection=connection).bind(n) for n in range(100, 400))
        assert (made.created, box.enqueued()) == (300, [])
    assert numbers(box) == list(range(400))
    assert box.drain(inline=True).succeeded == 400


def test_inline_drains_in_several_threads_share_the_work(box: Sandbox) -> None:
    note = box.app.tasks["note"]
    for n in range(60):
        note.enqueue(n)
    done: list[int] = []
    threads = [threading.Thread(target=lambda: done.append(box.drain(inline=True).succeeded)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 60
    assert box.app.audit().violations == []


def test_an_error_in_the_test_leaves_nothing_behind(app: Holdfast, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    with pytest.raises(ZeroDivisionError), sandbox(app), app.eager():
        app.tasks["note"].using(connection=connection).enqueue(1 // 0)
    with pytest.raises(ZeroDivisionError), sandbox(app) as box:  # noqa: PT012 - the block is what fails
        app.tasks["note"].using(connection=connection).enqueue(1)
        assert len(box.pending()) == 1 // 0
    assert app.url.startswith("postgresql://")
    app.configure(url=f"sqlite:///{tmp_path}/other.db")  # a sandbox is no use of the real store
    with sandbox(app) as box:
        connection.commit()
        app.tasks["note"].enqueue(2)
        assert (box.drain(inline=True).succeeded, numbers(box)) == (1, [2])
    app.configure(url=f"sqlite:///{tmp_path}/third.db")
    connection.close()


def test_a_job_that_waits_is_not_there_for_anybody(box: Sandbox, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    job = box.app.tasks["note"].using(connection=connection).enqueue(1)
    with pytest.raises(JobNotFound):
        job.refresh()
    assert box.drain(inline=True).succeeded == 0
    connection.commit()
    assert box.run(job, inline=True).value == f"app 1 in {threading.current_thread().name}"
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
def test_a_forked_child_has_its_own_copy_and_harms_no_connection(box: Sandbox) -> None:
    note = box.app.tasks["note"]
    connection = psycopg.connect(shared_server().conninfo)
    note.using(connection=connection).enqueue(1)
    assert len(box.pending()) == 1  # the sandbox has a connection of its own now
    child = os.fork()
    if child == 0:
        code = 1
        try:
            note.enqueue(7)
            waits = len(box.pending()) == 1
            code = 0 if waits and box.drain(inline=True).succeeded == 1 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (numbers(box), len(box.pending())) == ([], 1)
    connection.commit()
    assert numbers(box) == [1]
    connection.close()


def test_everything_nested_in_everything(app: Holdfast) -> None:
    seen: list[Any] = []

    @app.task(name="outer")
    def outer() -> None:
        with sandbox(app) as inner:  # inside a handler: another store
            app.tasks["note"].enqueue(1)
            seen.append(len(inner.enqueued()))
        with ExitStack() as stack:
            stack.enter_context(app.eager())
            seen.append(app.tasks["note"].enqueue(2).state)

    with sandbox(app) as box:
        job = box.app.tasks["outer"].enqueue()
        assert box.run(job, inline=True, raises=True).state == "succeeded"
        assert [job.task for job in box.enqueued()] == ["outer"]
    assert seen == [1, "succeeded"]


def test_a_loop_that_is_cancelled_in_the_middle_is_left_clean(box: Sandbox) -> None:
    begun = asyncio.Event()

    @box.app.task(name="forever", retry=0)
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        await forever.aenqueue()
        draining = asyncio.create_task(box.adrain(inline=True))
        await begun.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert [job.state for job in box.enqueued()] == ["ready"]  # given back
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
