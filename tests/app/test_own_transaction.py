"""ctx.succeed(connection=…): a handler's writes and its job's end are committed together, or neither is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.backends.callers import ASYNC, SYNC, Caller
from tests.moving.stage import fresh_url
from tests.servers import postgres

from holdfast import (
    BackendUnavailable,
    ConfigurationError,
    Context,
    Holdfast,
    InvalidResult,
    Job,
    LeaseLost,
    OutcomeUnknown,
    ResultGone,
    RetryPolicy,
    State,
)
from holdfast.testing import sandbox

CALLERS = {
    "sqlite": ("sqlite3", *SYNC[1:], *ASYNC[1:3]),
    "postgres": (*SYNC, *ASYNC),
}
PAIRS = [(store, kind) for store, kinds in CALLERS.items() for kind in kinds]
INSERT = "INSERT INTO ledger (job) VALUES ('{}')"


class Bank:
    """A store, a table of the user's own in the same database, and a way to write into both."""

    def __init__(self, store: str, kind: str, folder: Path) -> None:
        url = fresh_url(store, folder)
        self.kind = kind
        if store == "sqlite":
            path = url.removeprefix("sqlite:///")
            driver = "sqlite+aiosqlite" if kind in ASYNC else "sqlite"
            self._address, self._conninfo, url = f"{driver}:///{path}", path, f"{url}?share=true"
            self.reader: Any = sqlite3.connect(path, isolation_level=None)
        else:
            self._conninfo = postgres.shared_server().conninfo
            self._address = self._conninfo.replace("postgresql://", "postgresql+psycopg://")
            self.reader = psycopg.connect(self._conninfo, autocommit=True)
        self.reader.execute("DROP TABLE IF EXISTS ledger")
        self.reader.execute("CREATE TABLE ledger (job TEXT)")
        self.app = Holdfast(url)
        self.app.open()

    def rows(self) -> list[str]:
        return sorted(row[0] for row in self.reader.execute("SELECT job FROM ledger").fetchall())

    async def caller(self) -> Caller:
        caller = Caller(self.kind, self._address, self._conninfo)
        if self.kind == "sqlite3":
            caller.connection = sqlite3.connect(self._conninfo)
            return caller
        return await caller.open()

    async def write(self, caller: Caller, job_id: str) -> None:
        await caller.begin()
        await caller.execute(INSERT.format(job_id))

    async def succeed(self, caller: Caller, ctx: Context, result: Any) -> None:
        if caller.is_async:
            await ctx.asucceed(result, connection=caller.connection)
        else:
            ctx.succeed(result, connection=caller.connection)

    def close(self) -> None:
        self.app.close()
        self.reader.execute("DROP TABLE ledger")
        self.reader.close()


@pytest.fixture(params=PAIRS, ids=lambda pair: " ".join(pair))
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    store, kind = request.param
    made = Bank(store, kind, tmp_path)
    yield made
    made.close()


def test_effect_and_outcome_are_committed_together(bank: Bank) -> None:
    """Every way a transaction can end, and what the handler does afterwards."""
    app = bank.app
    seen: list[tuple[str, str]] = []

    @app.on("succeeded")
    def succeeded(event: Any) -> None:
        seen.append((event.job_id, event.task))

    @app.task(name="pay", group=lambda how: "one", retry=RetryPolicy.fixed(0, limit=1))
    async def pay(ctx: Context, how: str) -> str:
        caller = await bank.caller()
        try:
            await bank.write(caller, how)
            await bank.succeed(caller, ctx, f"paid {how}")
            if how.startswith("rolled back") and ctx.attempt == 1:
                await caller.rollback()
            else:
                await caller.commit()
            if how.endswith("raises") and ctx.attempt == 1:
                raise ValueError("after the end")
            return "ignored"
        finally:
            await caller.close()

    hows = ["committed", "committed, then raises", "rolled back", "rolled back, then raises"]
    jobs = [pay.enqueue(how) for how in hows]
    drained = app.work(drain=True, slots=4)
    assert (drained.succeeded, drained.failed) == (4, 2)
    assert bank.rows() == sorted(hows), "each effect is there once"
    for job, how in zip(jobs, hows, strict=True):
        assert (job.refresh().state, job.result()) == (State.SUCCEEDED, f"paid {how}")
        assert job.attempts == (2 if how.startswith("rolled") else 1)
    assert "that transaction was not committed" in jobs[2].errors[0].text
    assert jobs[3].errors[0].text == "after the end"
    assert sorted(id for id, _ in seen) == sorted(job.id for job in jobs)
    assert app.audit().violations == []


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Let it go on when the worker, told of the cancel, is faster than the store's refusal."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


def test_a_lease_that_is_gone_takes_the_effect_with_it(bank: Bank) -> None:
    app = bank.app
    refused: list[type[BaseException]] = []

    @app.task(name="pay", retry=RetryPolicy.fixed(0, limit=3))
    async def pay(ctx: Context, how: str) -> None:
        await uninterrupted(paying(ctx, how))

    async def paying(ctx: Context, how: str) -> None:
        caller = await bank.caller()
        try:
            if how == "cancelled" and ctx.attempt == 1:
                await app.acancel(ctx.id)
            await bank.write(caller, how)
            with suppress(InvalidResult):
                await bank.succeed(caller, ctx, object())
            await bank.succeed(caller, ctx, None)
            if how == "twice":
                await bank.succeed(caller, ctx, None)
            await caller.commit()
        except BaseException as error:
            refused.append(type(error))
            await caller.rollback()
            if how == "twice":
                return
            raise
        finally:
            await caller.close()

    cancelled, twice = pay.enqueue("cancelled"), pay.options(retry=None).enqueue("twice")
    app.work(drain=True, slots=1)
    assert (cancelled.refresh().state, twice.refresh().state) == (State.CANCELLED, State.DEAD)
    assert bank.rows() == []
    assert [kind.__name__ for kind in refused] == ["CancelRequested", "LeaseLost"]


@pytest.mark.parametrize(("store", "kind"), [("sqlite", "sqlite3"), ("postgres", "psycopg")])
def test_a_committed_success_is_none_that_was_lost_though_it_cannot_be_read_at_once(
    store: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is unreachable just after the commit: how the job ended is read again, not guessed."""
    bank = Bank(store, kind, tmp_path)
    app, backend = bank.app, type(bank.app._store.unopened)
    read, failures, lost = backend.ended, [BackendUnavailable("no"), OutcomeUnknown("ended")], list[Any]()

    async def ended(self: Any, job_ids: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read(self, job_ids)

    app.on("lease_lost")(lost.append)

    @app.task(name="pay")
    async def pay(ctx: Context) -> None:
        caller = await bank.caller()
        await bank.write(caller, ctx.id)
        await bank.succeed(caller, ctx, "paid")
        await caller.commit()
        await caller.close()

    monkeypatch.setattr(backend, "ended", ended)
    job = pay.enqueue()
    assert (app.work(drain=True).succeeded, lost, failures) == (1, [], [])
    assert (job.refresh().state, bank.rows()) == (State.SUCCEEDED, [job.id])
    bank.close()


@pytest.mark.parametrize("ends", ["committed", "rolled back"])
@pytest.mark.parametrize(("store", "kind"), [("sqlite", "sqlite3"), ("postgres", "psycopg")])
def test_an_attempt_that_is_interrupted_after_its_own_commit_counts_as_a_success(
    store: str, kind: str, ends: str, tmp_path: Path
) -> None:
    """The worker is stopped while the handler does something else: what the handler committed decides."""
    bank = Bank(store, kind, tmp_path)
    app, seen = bank.app, list[str]()
    for name in ("succeeded", "lease_lost", "failed"):
        app.on(name)(lambda event: seen.append(event.name))

    async def scene() -> tuple[Job[None], int]:
        stopped = asyncio.Event()

        @app.task(name="pay")
        async def pay(ctx: Context) -> None:
            caller = await bank.caller()
            await bank.write(caller, ctx.id)
            await bank.succeed(caller, ctx, "paid")
            await (caller.commit() if ends == "committed" else caller.rollback())
            await caller.close()
            stopped.set()
            await asyncio.Event().wait()

        job = await pay.aenqueue()
        worker = app.worker(grace=0)
        running = asyncio.create_task(worker.run(signals=False))
        await stopped.wait()
        worker.request_stop()
        return job, (await running).succeeded

    job, succeeded = asyncio.run(scene())
    if ends == "committed":
        assert (succeeded, seen) == (1, ["succeeded"])
        assert (job.refresh().state, bank.rows()) == (State.SUCCEEDED, [job.id])
    else:
        assert (succeeded, seen) == (0, [])
        assert (job.refresh().state, job.attempts, bank.rows()) == (State.READY, 0, [])
    bank.close()


def test_a_job_to_be_removed_goes_once_it_is_committed(bank: Bank) -> None:
    """It is gone when the worker has ended, unless another job refers to it; one that was rolled back runs again."""
    app, attempts = bank.app, list[tuple[str, int]]()

    @app.task(name="pay", group=lambda how: "one", remove=True, retry=RetryPolicy.fixed(0, limit=1))
    async def pay(ctx: Context, how: str) -> None:
        caller = await bank.caller()
        attempts.append((how, ctx.attempt))
        await bank.write(caller, how)
        await bank.succeed(caller, ctx, "paid")
        if how == "rolled back" and ctx.attempt == 1:
            await caller.rollback()
        else:
            await caller.commit()
        await caller.close()

    gone = [pay.enqueue("committed"), pay.enqueue("rolled back")]
    kept = pay.enqueue("parent")
    child = pay.options(after=[kept]).enqueue("child")
    assert app.work(drain=True).succeeded == 4
    assert attempts == [("committed", 1), ("rolled back", 1), ("rolled back", 2), ("parent", 1), ("child", 1)]
    assert {job.id for job in app.jobs()} == {kept.id, child.id}, "the others are gone"
    assert bank.rows() == ["child", "committed", "parent", "rolled back"]
    for job in gone:
        with pytest.raises(ResultGone):
            job.result(timeout=1)
    assert app.audit().violations == []


def test_the_next_job_of_its_group_starts_when_it_is_committed(bank: Bank) -> None:
    """While the transaction is open the group is held; nobody waits for it but the group."""
    app = bank.app
    order: list[str] = []

    @app.task(name="pay", group=lambda name: "one")
    async def pay(ctx: Context, name: str) -> None:
        order.append(f"{name} begins")
        caller = await bank.caller()
        await bank.write(caller, name)
        await bank.succeed(caller, ctx, None)
        order.append(f"{name} commits")
        await caller.commit()
        await caller.close()

    for name in "abc":
        pay.enqueue(name)
    assert app.work(drain=True, slots=4).succeeded == 3
    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "commits")]


def test_what_it_refuses(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}")
    other = sqlite3.connect(tmp_path / "other.db", check_same_thread=False)
    autocommit = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    texts: list[str] = []

    @app.task(name="pay")
    def pay(ctx: Context) -> str:
        for connection in (other, autocommit, object()):
            with pytest.raises(ConfigurationError) as error:
                ctx.succeed(connection=connection)
            texts.append(str(error.value))
        return "returned"

    job = pay.enqueue()
    with app:
        app.work(drain=True)
        assert job.refresh().state is State.SUCCEEDED, "nothing was settled by what was refused"
        assert job.result() == "returned"
    assert "a different database" in texts[0]
    assert "autocommit mode" in texts[1]
    assert "it was given a builtins.object" in texts[2]
    other.close()
    autocommit.close()


def test_stores_without_transactions_refuse() -> None:
    app = Holdfast("memory://")
    connection = sqlite3.connect(":memory:")

    @app.task(name="pay", retry=None)
    def pay(ctx: Context) -> None:
        ctx.succeed(connection=connection)

    job = pay.enqueue()
    app.work(drain=True)
    assert job.refresh().state is State.DEAD
    assert "memory:// cannot join a caller's transaction" in job.errors[0].text
    connection.close()


def test_in_a_sandbox_the_commit_decides(tmp_path: Path) -> None:
    app = Holdfast("sqlite:///never-used.db")
    shop = sqlite3.connect(tmp_path / "shop.db", check_same_thread=False)
    shop.execute("CREATE TABLE ledger (job TEXT)")

    @app.task(name="pay", retry=None)
    def pay(ctx: Context, commit: bool) -> None:
        shop.execute(INSERT.format(ctx.id))
        ctx.succeed({"paid": True}, connection=shop)
        if commit:
            shop.commit()
        else:
            shop.rollback()

    with sandbox(app) as box:
        paid = pay.enqueue(commit=True)
        box.drain()  # one job at a time: two at once would commit each other's work on the one connection
        lost = pay.enqueue(commit=False)
        box.drain()
        assert (paid.refresh().state, lost.refresh().state) == (State.SUCCEEDED, State.DEAD)
        assert paid.result() == {"paid": True}
    assert pay(commit=True) is None, "a plain call has no job to settle"
    shop.close()


def test_a_lost_lease_raises(tmp_path: Path) -> None:
    """The worker was taken for dead while its handler went on: its effect is not committed beside the next one's."""
    bank = Bank("sqlite", "sqlite3", tmp_path)
    app = bank.app

    @app.task(name="pay")
    def pay(ctx: Context) -> None:
        connection = sqlite3.connect(bank._conninfo)
        try:
            if not lost:
                [worker] = app.workers()
                app._store.call(lambda backend: backend.recover(dead=[worker.id]))
            connection.execute(INSERT.format(ctx.fence))
            ctx.succeed(connection=connection)
            connection.commit()
        except LeaseLost:
            connection.rollback()
            lost.append(ctx.fence)
            raise
        finally:
            connection.close()

    lost: list[int] = []
    job = pay.enqueue()
    app.work(drain=True, slots=1)
    assert job.refresh().state is State.SUCCEEDED
    assert len(lost) == 1
    assert len(bank.rows()) == 1
    bank.close()


def test_a_success_of_the_next_lease_is_not_counted_for_a_lost_one(tmp_path: Path) -> None:
    """The handler rolled back, its worker was taken for dead, and another program finished the job."""
    bank = Bank("sqlite", "sqlite3", tmp_path)
    app = bank.app

    @app.task(name="pay")
    def pay(ctx: Context) -> None:
        connection = sqlite3.connect(bank._conninfo)
        ctx.succeed(connection=connection)
        connection.rollback()
        connection.close()
        [worker] = app.workers()
        app._store.call(lambda backend: backend.recover(dead=[worker.id]))
        with app.lease("default") as [again]:
            again.succeed("by another")

    job = pay.enqueue()
    assert app.work(drain=True, slots=1).succeeded == 0
    assert job.refresh().value == "by another"
    bank.close()


def test_a_role_with_just_the_rights_named_settles(tmp_path: Path) -> None:
    bank = Bank("postgres", "psycopg", tmp_path)
    schema = bank.app.url.partition("schema=")[2].partition("&")[0]
    admin, role = bank.reader, f"clerk_{schema[-40:]}"
    admin.execute(f'DROP ROLE IF EXISTS "{role}"')
    admin.execute(f'CREATE ROLE "{role}" LOGIN')
    admin.execute(f'GRANT INSERT ON ledger TO "{role}"')
    rights = {
        f'USAGE ON SCHEMA "{schema}"',
        f'SELECT, UPDATE ON "{schema}".jobs',
        f'SELECT ON "{schema}".ids, "{schema}".tasks, "{schema}".edges, "{schema}".schema_version',
        f'SELECT, INSERT ON "{schema}".retained, "{schema}".propagating',
        f'SELECT, UPDATE, DELETE ON "{schema}".letters',
    }
    for right in rights:
        admin.execute(f'GRANT {right} TO "{role}"')
    refused: list[str] = []

    @bank.app.task(name="pay")
    def pay(ctx: Context) -> None:
        with psycopg.connect(bank._conninfo.replace("postgres@", f"{role}@")) as clerk:
            clerk.execute(INSERT.format(ctx.id))
            if not refused:
                admin.execute(f'REVOKE UPDATE ON "{schema}".jobs FROM "{role}"')
                try:
                    with clerk.transaction():
                        ctx.succeed("paid", connection=clerk)
                except ConfigurationError as error:
                    refused.append(str(error))
                admin.execute(f'GRANT UPDATE ON "{schema}".jobs TO "{role}"')
            ctx.succeed("paid", connection=clerk)

    job = pay.enqueue()
    child = pay.options(after=[job]).enqueue()
    bank.app.work(drain=True)
    assert (job.refresh().state, child.refresh().state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert "Grant it USAGE on the schema, SELECT and UPDATE on its jobs" in refused[0]
    admin.execute(f'DROP OWNED BY "{role}"')
    admin.execute(f'DROP ROLE "{role}"')
    bank.close()
