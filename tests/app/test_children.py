"""Jobs that a handler enqueues with its own end (`ctx.enqueue`): both are stored, or neither."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from tests.moving.stage import fresh_url
from tests.servers import postgres
from tests.soak import flow_jobs

from holdfast import BoundCall, Bury, ConfigurationError, Context, Holdfast, LeaseLost, State, events, testing
from holdfast.children import CHILDREN_MAX
from holdfast.errors import ParentNotFound

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]


@pytest.fixture(params=KINDS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else fresh_url(request.param, tmp_path)
    with Holdfast(url) as made:
        yield made


def test_jobs_are_stored_with_the_success_of_their_handler(anywhere: Holdfast) -> None:
    app, seen = anywhere, list[int]()

    @app.task(name="page")
    def page(number: int) -> None:
        seen.append(number)

    @app.task(name="crawl", retry=1)
    def crawl(ctx: Context, pages: int) -> str:
        jobs = [ctx.enqueue(page.bind(number)) for number in range(pages)]
        last = ctx.enqueue(page.options(after=jobs, delay=0.0).bind(pages))
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return last.id

    @app.task(name="acrawl")
    async def acrawl(ctx: Context) -> None:
        ctx.enqueue_many(page.bind(number) for number in (10, 11))

    crawled = crawl.options(retry=1).enqueue(2)
    acrawl.enqueue()
    app.work(drain=True)
    assert sorted(seen) == [10, 11]  # nothing of an attempt that failed
    app.run_now(crawled.id)
    app.work(drain=True)
    assert sorted(seen) == [0, 1, 2, 10, 11]
    assert seen[-1] == 2
    assert app.job(crawled.result(timeout=5)).state is State.SUCCEEDED
    assert not app.audit().violations


def test_a_job_that_enqueues_itself_keeps_its_key(app: Holdfast) -> None:
    @app.task(name="poll", key="poll")
    def poll(ctx: Context, left: int) -> None:
        if left:
            ctx.enqueue(poll.bind(left - 1))

    poll.enqueue(3)
    assert app.work(drain=True).succeeded == 4


def test_jobs_that_the_store_refuses_kill_their_parent(app: Holdfast) -> None:
    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent")
    def parent(ctx: Context) -> None:
        ctx.enqueue(child.bind())
        ctx.enqueue(child.options(after=["nobody"]).bind())

    job = parent.enqueue()
    app.work(drain=True)
    job = job.refresh()
    assert (job.state, job.reason) == (State.DEAD, "refused")
    assert job.error is not None and "wait for job 'nobody'" in job.error.text
    assert [one.task for one in app.jobs()] == ["parent"]


def test_what_cannot_be_stored_with_the_end_is_refused_at_once(app: Holdfast) -> None:
    @app.task(name="child")
    def child(text: str = "") -> None: ...

    refusals: list[str] = []

    @app.task(name="parent")
    def parent(ctx: Context) -> None:
        for call in (child, child.options(on_conflict="raise", key="k").bind(), child.options(connection=1).bind()):
            with pytest.raises(ConfigurationError) as refused:
                ctx.enqueue(cast(BoundCall[None], call))
            refusals.append(str(refused.value))
        with pytest.raises(ConfigurationError, match="at most 1000"):
            ctx.enqueue_many(child.bind() for _ in range(CHILDREN_MAX + 1))
        with pytest.raises(ConfigurationError, match="8 MiB"):
            ctx.enqueue(child.bind("x" * (9 << 20)))
        raise Bury

    parent.enqueue()
    app.work(drain=True)
    assert ["bound call" in refusals[0], "on_conflict" in refusals[1], "connection" in refusals[2]] == [True] * 3
    assert len(list(app.jobs())) == 1


def test_the_event_tells_of_jobs_that_handlers_enqueued(app: Holdfast) -> None:
    seen: list[str] = []

    @app.on("enqueued")
    def note(event: events.Enqueued) -> None:
        seen.append(event.task)

    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent")
    def parent(ctx: Context) -> None:
        ctx.enqueue(child.bind())

    parent.enqueue()
    app.work(drain=True)
    assert seen == ["parent", "child"]


def test_jobs_come_with_the_end_of_a_leased_job(app: Holdfast) -> None:
    @app.task(name="child")
    def child() -> None: ...

    named = app.named("other.language")
    named.enqueue()
    named.enqueue()
    with app.lease("default", most=2) as (first, second):
        job = first.enqueue(child.bind())
        second.enqueue(child.options(after=["nobody"]).bind())
        first.succeed("done")
        with pytest.raises(ParentNotFound):
            second.succeed()
        second.fail("no such parent")
    assert app.job(job.id).state is State.READY
    assert {job.state for job in app.jobs("task:other.language")} == {State.SUCCEEDED, State.SCHEDULED}


def test_jobs_join_a_transaction_of_the_handler(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Holdfast(f"sqlite:///{path}") as app:

        @app.task(name="child")
        def child() -> None: ...

        @app.task(name="parent")
        def parent(ctx: Context, commit: bool) -> None:
            ctx.enqueue(child.bind())
            connection = sqlite3.connect(path, timeout=10)
            connection.execute("CREATE TABLE IF NOT EXISTS notes (text)")
            connection.execute("INSERT INTO notes VALUES ('x')")
            ctx.succeed(connection=connection)
            if commit:
                connection.commit()
            connection.close()

        done = parent.options(retry=0).enqueue(True)
        undone = parent.options(retry=0).enqueue(False)
        app.work(drain=True)
        assert (done.refresh().state, undone.refresh().state) == (State.SUCCEEDED, State.DEAD)
        assert [job.state for job in app.jobs("task:child")] == [State.SUCCEEDED]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_job_of_a_transaction_may_take_the_key_of_the_one_that_ends(kind: str, tmp_path: Path) -> None:
    url, ran = fresh_url(kind, tmp_path), list[int]()
    with Holdfast(url) as app:

        def connect() -> Any:
            if kind == "sqlite":
                return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)
            return psycopg.connect(postgres.shared_server().conninfo)

        @app.task(name="poll", key="poll")
        def poll(ctx: Context, n: int) -> None:
            ran.append(n)
            if n < 2:
                ctx.enqueue(poll.bind(n + 1))
            connection = connect()
            ctx.succeed(connection=connection)
            connection.commit()
            connection.close()

        poll.enqueue(0)
        app.work(drain=True)
        assert ran == [0, 1, 2]
        assert app.audit().violations == []


def test_a_lost_lease_leaves_its_jobs_out_of_the_transaction(tmp_path: Path) -> None:
    """Also if the handler goes on after LeaseLost and commits what it wrote."""
    path = tmp_path / "jobs.db"
    with Holdfast(f"sqlite:///{path}") as app:

        @app.task(name="child")
        def child() -> None: ...

        @app.task(name="parent")
        def parent(ctx: Context) -> None:
            ctx.enqueue(child.bind())
            [worker] = app.workers()
            app._store.call(lambda backend: backend.recover(dead=[worker.id]))
            app.cancel(ctx.id)
            connection = sqlite3.connect(path, timeout=10)
            with pytest.raises(LeaseLost):
                ctx.succeed(connection=connection)
            connection.commit()
            connection.close()

        parent.enqueue()
        app.work(drain=True)
        assert list(app.jobs("task:child")) == []


def test_a_member_of_a_batch_is_refused_in_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Holdfast(f"sqlite:///{path}") as app:

        @app.task(name="member", retry=0)
        def member(ctx: Context, adds: bool) -> None:
            if adds:
                assert ctx.batch is not None
                ctx.enqueue(ctx.batch.add(member.bind(False)))
                connection = sqlite3.connect(path, timeout=10)
                with pytest.raises(ConfigurationError, match="own transaction"):
                    ctx.succeed(connection=connection)
                connection.close()

        batch = app.enqueue_batch([member.bind(True)])
        app.work(drain=True)
        assert batch.finished(timeout=10).counts == {State.SUCCEEDED: 2}


def test_jobs_come_from_runner_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    root = Path(__file__).resolve().parents[2]
    flow_jobs.app.configure(url=url)
    with flow_jobs.app as app:
        flow_jobs.enqueue_unit()
        words = ["work", "tests.soak.flow_jobs:app", "--app-dir", str(root), "--drain", "--url", url]
        env = {**os.environ, flow_jobs.JOURNAL: str(tmp_path / "journal")}
        command = [sys.executable, "-m", "holdfast.cli", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env=env)
        found = Counter((job.task, job.state.value) for job in app.jobs(limit=1000))
    assert found == flow_jobs.UNIT


def test_the_sandbox_stores_what_handlers_enqueue(app: Holdfast) -> None:
    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent")
    def parent(ctx: Context) -> None:
        ctx.enqueue(child.bind())

    with testing.sandbox(app) as box:
        parent.enqueue()
        box.drain()
        box.assert_enqueued(child, count=1)


def test_an_eager_app_runs_what_handlers_enqueue() -> None:
    app, seen = Holdfast("memory://"), list[str]()

    @app.task(name="child")
    def child() -> None:
        seen.append("child")

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.bind())

    with app.eager():
        parent.enqueue()
    assert seen == ["child"]
