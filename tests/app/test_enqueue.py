"""Enqueueing: every option, both twins, one job per bound call, and nothing stored where something is wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Enqueued, Holdfast, Revival, Task
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.errors import (
    BackendUnavailable,
    ConfigurationError,
    DuplicateJob,
    InvalidArguments,
    InvalidResult,
    OutcomeUnknown,
)
from holdfast.events import Enqueued as EnqueuedEvent
from holdfast.producer import CHUNK_BYTES_MAX
from holdfast.records import NewJob


def mail(app: Holdfast, **settings: Any) -> Task[[str, str], str]:
    @app.task(name="mail", **settings)
    def send(to: str, subject: str = "hi") -> str:
        return to

    return send


def test_a_job_comes_back_with_what_was_stored(app: Holdfast) -> None:
    job = mail(app, queue="post", priority=5).enqueue("ann", "hello")
    assert (job.task, job.queue, job.priority, job.state, job.created) == ("mail", "post", 5, "ready", True)
    assert job.args == {"to": "ann", "subject": "hello"}
    assert (job.attempts, job.failures, job.stalls, job.errors, job.error) == (0, 0, 0, (), None)
    assert abs(job.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    stored = app.job(job.id)
    assert stored == job
    assert (stored.state, stored.args, stored.due_at.tzinfo) == ("ready", job.args, UTC)


def test_both_twins_store_alike(app: Holdfast) -> None:
    send = mail(app)

    async def main() -> None:
        job = await send.aenqueue("ann", "hi")
        await send.options(delay=5).aenqueue("bob", "hi")
        await app.aenqueue(send.bind("cid", "hi"))
        assert (await app.ajob(job.id)).args["to"] == "ann"

    asyncio.run(main())
    asyncio.run(main())  # another loop
    send.enqueue("dan", "hi")
    assert app.counts()["default"]["ready"] == 5
    assert app.counts()["default"]["scheduled"] == 2


def test_repeating_a_bound_call_makes_one_job(app: Holdfast) -> None:
    call = mail(app).bind("ann", "hi")
    first, second = app.enqueue(call), app.enqueue(call)
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id == call.id
    assert app.enqueue_many([call, call]) == Enqueued(0, 2)
    assert sum(app.counts()["default"].values()) == 1


def test_a_call_bound_again_differs_in_id_arguments_and_group_only(memory_app: Holdfast) -> None:
    @memory_app.task(name="again", group=lambda x: f"g{x}", expires=60)
    def again(x: int) -> None: ...

    kinds: list[Any] = [{}, {"priority": 3, "delay": 5}, {"queue": "mail", "headers": {"a": "b"}}, {"by": "ann"}]
    for settings in kinds:
        some = again.options(**settings)
        first, second = some.bind(1).new, some.bind(2).new
        assert first.id != second.id
        assert (second.args, second.group) == (b'{"x":2}', "g2")
        assert second == msgspec.structs.replace(again.options(**settings).bind(2).new, id=second.id)
    assert some.options(id="mine").bind(3).id == some.options(id="mine").bind(3).id == "mine"


def test_every_setting_of_using_is_stored(app: Holdfast) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    job = (
        mail(app)
        .options(queue="other", priority=-3, key="k1", group="g1", id="my-id", at=at, expires=60, max_stalls=7)
        .options(revive=Revival(after=5, cycles=1), retry=9, timeout=timedelta(seconds=4), retain=99)
        .enqueue("ann", "hi")
    )
    stored = app.job("my-id")._record
    assert (stored.queue, stored.priority, stored.key, stored.group, stored.id) == ("other", -3, "k1", "g1", "my-id")
    assert stored.due_at == pytest.approx(at.timestamp())
    assert stored.expires_at == pytest.approx(at.timestamp() + 60)
    assert (stored.max_stalls, stored.revival) == (7, Revival(after=5.0, cycles=1))
    own = app.tasks["mail"].defaults.for_call(stored.options)
    assert (own.retry.limit, own.timeout, own.retain) == (9, 4.0, 99.0)
    assert job.state == "scheduled"


def test_delay_and_at_refine_each_other() -> None:
    with Holdfast("memory://") as app:
        send = mail(app).options(delay=60)
        assert send.options(priority=1).bind("a", "b").new.delay == 60.0
        later = send.options(at=datetime.now(timezone(timedelta(hours=2)))).bind("a", "b").new
        assert later.delay is None
        assert later.due_at is not None
        assert send.options(delay=0).enqueue("a", "b").state == "ready"
        assert mail_state(send.options(at=datetime(2000, 1, 1, tzinfo=UTC)).enqueue("a", "b")) == "ready"


def mail_state(job: Any) -> str:
    return str(job.refresh().state)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 10**12},
        {"delay": 5, "at": datetime.now(UTC)},
        {"at": datetime(2026, 1, 1)},
        {"at": "tomorrow"},
        {"id": ""},
        {"id": "a\nb"},
        {"id": 7},
        {"priority": 1000},
        {"queue": "a{b"},
        {"key": ""},
        {"group": "x" * 201},
        {"on_conflict": "drop"},
        {"name": "other"},
        {"aliases": ["other"]},
        {"isolation": "none"},
        {"limit": 3},
        {"retry": lambda failures, error: 1.0},
        {"colour": "red"},
    ],
)
def test_wrong_settings_are_refused_before_anything_is_stored(memory_app: Holdfast, wrong: dict[str, Any]) -> None:
    send = mail(memory_app)
    with pytest.raises(ConfigurationError):
        send.options(**wrong).enqueue("ann", "hi")
    assert memory_app.counts() == {}


@pytest.mark.parametrize(
    "wrong", [("ann", 7), (), ("a", "b", "c"), (None, "hi"), (float("nan"), "hi"), ("\ud800", "x")]
)
def test_wrong_arguments_are_refused_before_anything_is_stored(memory_app: Holdfast, wrong: tuple[Any, ...]) -> None:
    send = mail(memory_app)
    with pytest.raises(InvalidArguments, match="'mail'"):
        send.enqueue(*wrong)
    with pytest.raises(InvalidArguments, match="'mail'"):
        asyncio.run(send.aenqueue(*wrong))
    assert memory_app.counts() == {}


def test_the_apps_size_limits_hold() -> None:
    with Holdfast("memory://", args_bytes_max=50, result_bytes_max=10) as app:
        send = mail(app)
        send.enqueue("ann", "hi")
        with pytest.raises(InvalidArguments, match="at most 50"):
            send.enqueue("x" * 50, "hi")
        with pytest.raises(InvalidArguments, match="at most 50"):
            app.task_by_name("other").enqueue("x" * 50)
        assert send._encode("x") == b'"x"'
        with pytest.raises(InvalidResult, match="at most 10"):
            send._encode("x" * 10)
    with pytest.raises(ConfigurationError, match="args_bytes_max"):
        Holdfast("memory://", args_bytes_max=0)


def test_keys_keep_replace_or_raise(app: Holdfast) -> None:
    send = mail(app, key=lambda to: to)
    first = send.enqueue("ann", "one")
    kept = send.enqueue("ann", "two")
    assert (kept.created, kept.id, kept.args["subject"]) == (False, first.id, "one")
    replaced = send.options(on_conflict="replace").enqueue("ann", "three")
    assert (replaced.created, replaced.id, replaced.args["subject"]) == (False, first.id, "three")
    with pytest.raises(DuplicateJob) as caught:
        send.options(on_conflict="raise").enqueue("ann", "four")
    assert caught.value.existing_id == first.id
    assert sum(app.counts()["default"].values()) == 1


def test_a_grouped_job_tells_whether_it_waits(app: Holdfast) -> None:
    send = mail(app, group=lambda to: to)
    assert [send.enqueue("ann", "hi").state for _ in range(3)] == ["ready", "waiting", "waiting"]
    assert send.enqueue("bob", "hi").state == "ready"
    assert app.groups.get("default", "ann").counts == {"ready": 1, "waiting": 2}


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_many_large_calls_go_in_steps_a_slow_line_can_bring(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    steps: list[int] = []
    real = MemoryBackend.enqueue

    async def counted(self: MemoryBackend, jobs: Sequence[NewJob], now: float | None = None) -> Any:
        steps.append(len(jobs))
        return await real(self, jobs, now)

    monkeypatch.setattr(MemoryBackend, "enqueue", counted)
    send = mail(memory_app)
    calls = [send.bind(f"{n}", "x" * 900_000) for n in range(45)]
    made = memory_app.enqueue_many(calls) if twin == "sync" else asyncio.run(memory_app.aenqueue_many(calls))
    assert made == Enqueued(45, 0)
    assert sum(steps) == 45 and max(steps) * 900_000 < CHUNK_BYTES_MAX + 1_000_000


def test_many_are_stored_in_chunks_from_any_iterable(app: Holdfast) -> None:
    send = mail(app)
    assert app.enqueue_many(send.bind(str(n), "hi") for n in range(2500)) == Enqueued(2500, 0)
    assert app.enqueue_many([]) == Enqueued(0, 0)

    async def calls() -> AsyncIterator[Any]:
        for n in range(1500):
            yield send.bind(str(n), "hi")

    assert asyncio.run(app.aenqueue_many(calls())) == Enqueued(1500, 0)
    assert asyncio.run(app.aenqueue_many([send.bind("a", "b")])) == Enqueued(1, 0)
    assert app.counts()["default"]["ready"] == 4001
    with pytest.raises(ConfigurationError, match="aenqueue_many"):
        app.enqueue_many(calls())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["mail", None, 7, {"to": "ann"}])
def test_only_bound_calls_are_enqueued(memory_app: Holdfast, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"task\.bind"):
        memory_app.enqueue(wrong)
    with pytest.raises(ConfigurationError, match=r"task\.bind"):
        memory_app.enqueue_many([wrong])
    with pytest.raises(ConfigurationError, match=r"task\.bind"):
        asyncio.run(memory_app.aenqueue(wrong))


def test_a_sync_call_on_a_running_loop_names_its_twin(memory_app: Holdfast) -> None:
    send = mail(memory_app)

    async def main() -> None:
        for call, twin in (
            (lambda: send.enqueue("a", "b"), "aenqueue"),
            (lambda: memory_app.enqueue_many([send.bind("a", "b")]), "aenqueue_many"),
            (lambda: memory_app.job("x"), "app.ajob"),
            (lambda: memory_app.dead.list(), r"app\.dead\.alist"),
            (lambda: memory_app.groups.list(), r"app\.groups\.alist"),
            (lambda: memory_app.work(drain=True), "awork"),
            (lambda: list(memory_app.jobs()), "async for"),
            (lambda: memory_app.close(), "aclose"),
        ):
            with pytest.raises(ConfigurationError, match=twin):
                call()

    asyncio.run(main())
    assert memory_app.counts() == {}


def test_the_event_is_emitted_once_per_created_job(memory_app: Holdfast) -> None:
    send = mail(memory_app, key=lambda to: to, group=lambda to: to)
    told: list[EnqueuedEvent] = []
    memory_app.on("enqueued")(told.append)

    @memory_app.on("enqueued")
    def broken(event: EnqueuedEvent) -> None:
        raise RuntimeError("no")

    job = send.enqueue("ann", "hi")
    send.enqueue("ann", "hi")
    memory_app.enqueue_many([send.bind("bob", "hi"), send.bind("bob", "hi")])
    asyncio.run(send.aenqueue("cid", "hi"))
    assert [event.group for event in told] == ["ann", "bob", "cid"]
    assert (told[0].job_id, told[0].task, told[0].queue) == (job.id, "mail", "default")


# ---------------------------------------------------------------------- in the caller's transaction


def test_a_job_lives_and_dies_with_the_callers_transaction(sqlite_app: Holdfast, tmp_path: Path) -> None:
    send = mail(sqlite_app)
    sqlite_app.counts()  # opens the store
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        job = send.options(connection=connection).enqueue("ann", "hi")
        assert (job.state, job.created) == ("scheduled", True)
        connection.execute("ROLLBACK")
        assert sqlite_app.counts() == {}
        connection.execute("BEGIN IMMEDIATE")
        kept = send.options(connection=connection).enqueue("ann", "hi")
        sqlite_app.enqueue_many(send.options(connection=connection).bind(str(n), "hi") for n in range(3))
        connection.execute("COMMIT")
        assert kept.refresh().args["to"] == "ann"
        assert sum(sqlite_app.counts()["default"].values()) == 4
    finally:
        connection.close()


def test_the_store_is_set_up_before_the_callers_transaction_not_inside_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Holdfast(f"sqlite:///{path}?share=true") as app:
        send = mail(app)
        connection = sqlite3.connect(path)
        try:
            connection.execute("CREATE TABLE mine (x)")
            connection.execute("INSERT INTO mine VALUES (1)")
            with pytest.raises(ConfigurationError, match=r"app\.open"):
                send.options(connection=connection).enqueue("ann", "hi")
            connection.commit()
            assert send.options(connection=connection).enqueue("ann", "hi").created
            connection.commit()
            assert sum(app.counts()["default"].values()) == 1
        finally:
            connection.close()


def test_a_job_that_cannot_be_looked_at_is_stored_all_the_same(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = mail(memory_app, group=lambda to: to)

    async def unavailable(id: str) -> None:
        raise BackendUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(memory_app._backend, "get", unavailable)
        job = send.enqueue("ann", "hi")
    assert job.created
    assert job.refresh().state == "ready"


def test_a_failing_store_raises_and_the_same_call_can_be_repeated(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = mail(memory_app).bind("ann", "hi")
    backend = memory_app._backend
    enqueue_here = backend.enqueue_here

    def lost_reply(jobs: Any) -> Any:
        assert enqueue_here(jobs) is not None
        raise OutcomeUnknown("enqueue")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "enqueue_here", lost_reply)
        with pytest.raises(OutcomeUnknown):
            memory_app.enqueue(call)
    assert memory_app.enqueue(call).created is False
    assert sum(memory_app.counts()["default"].values()) == 1


def test_a_connection_that_cannot_carry_the_job_is_refused(
    sqlite_app: Holdfast, memory_app: Holdfast, tmp_path: Path
) -> None:
    send, other = mail(sqlite_app), mail(memory_app)
    sqlite_app.counts()
    connection = sqlite3.connect(tmp_path / "another.db")
    try:
        with pytest.raises(ConfigurationError):
            send.options(connection=connection).enqueue("ann", "hi")
        with pytest.raises(ConfigurationError):
            other.options(connection=connection).enqueue("ann", "hi")
        with pytest.raises(ConfigurationError, match=r"enqueue\(\)"):
            asyncio.run(send.options(connection=connection).aenqueue("ann", "hi"))
        with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
            send.options(connection=object()).enqueue("ann", "hi")
        with pytest.raises(ConfigurationError, match="share one connection"):
            sqlite_app.enqueue_many([send.bind("a", "b"), send.options(connection=connection).bind("a", "b")])
    finally:
        connection.close()
    assert sqlite_app.counts() == {}
