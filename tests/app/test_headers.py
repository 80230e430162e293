"""Headers that travel with a job: given for a call, added at enqueue, bounded, seen by handlers and operators."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from holdfast import BoundCall, ConfigurationError, Context, Holdfast, RetryPolicy, State
from holdfast.headers import HEADERS_BYTES_MAX, HEADERS_MAX, with_enqueuer

REQUEST: ContextVar[str] = ContextVar("request")


def with_task(app: Holdfast) -> Any:
    @app.task(name="work", retry=1)
    def work(ctx: Context, fail: bool = False) -> dict[str, str]:
        if fail and ctx.attempt == 1:
            raise ValueError("first")
        return ctx.headers

    return work


def test_a_handler_sees_the_headers_of_its_call_in_every_attempt(app: Holdfast) -> None:
    work = with_task(app)
    headers = {"request_id": "r1", "größe": "ß\x00"}
    traced = work.options(headers=headers, retry=RetryPolicy.fixed(500, limit=1), timeout=60)
    job = traced.options(headers={"tenant": "acme"}).enqueue(fail=True)
    assert job.headers == {**headers, "tenant": "acme"}
    app.work(drain=True)
    app.run_now(job)
    app.work(drain=True)
    assert job.refresh().value == {**headers, "tenant": "acme"}
    assert work.enqueue().headers == {}
    call = app.task_by_name("work", headers={"name": "value"}).bind()
    assert call.headers == {"name": "value"} and "value" not in repr(call)
    assert app.task_by_name("work").options(headers=None).bind().headers == {}


def test_a_hook_adds_headers_to_every_call(app: Holdfast) -> None:
    work, seen = with_task(app), []

    @app.on_enqueue
    def stamp(call: BoundCall[Any], headers: dict[str, str]) -> None:
        seen.append((call.task, dict(headers)))
        headers.setdefault("request_id", REQUEST.get("none"))

    @app.on_enqueue
    def drop(call: BoundCall[Any], headers: dict[str, str]) -> None:
        headers.pop("private", None)

    async def in_request() -> list[str]:
        REQUEST.set("r2")
        one = await work.options(timeout=9.0).aenqueue()
        await app.aenqueue_many(work.bind() for _ in range(2))
        return [one.id]

    given = work.options(headers={"request_id": "mine", "private": "x"}).enqueue()
    REQUEST.set("r1")
    named = app.task_by_name("work").enqueue()
    app.enqueue_many([work.bind()])
    [timed] = asyncio.run(in_request())
    ids = sorted(job.headers["request_id"] for job in app.jobs())
    assert (given.headers, named.headers) == ({"request_id": "mine"}, {"request_id": "r1"})
    assert ids == ["mine", "r1", "r1", "r2", "r2", "r2"] and len(seen) == 6
    options = with_enqueuer(app.job(timed)._record.options, "")
    assert options == b'{"timeout":9.0,"headers":{"request_id":"r2"}}'
    app.work(drain=True)
    assert {job.state for job in app.jobs()} == {State.SUCCEEDED}


def test_a_repeated_call_keeps_the_first_headers_and_a_failing_hook_stores_nothing(memory_app: Holdfast) -> None:
    app, work, number = memory_app, with_task(memory_app), iter(range(9))

    @app.on_enqueue
    def stamp(call: BoundCall[Any], headers: dict[str, str]) -> None:
        headers["n"] = str(next(number))
        if headers["n"] == "2":
            raise LookupError("no request")

    call = work.bind()
    assert app.enqueue(call).headers == app.enqueue(call).refresh().headers == {"n": "0"}
    with pytest.raises(LookupError):
        work.enqueue()
    assert len(list(app.jobs())) == 1


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ("request_id", "a dict of str to str"),
        ({"n": 1}, "'n' must be a str, not int"),
        ({1: "n"}, "header's name must be a str"),
        ({"": "n"}, "is empty"),
        ({"a\nb": "n"}, "control character"),
        ({"n": "\ud800secret"}, "lone surrogate"),
        ({str(n): "" for n in range(HEADERS_MAX + 1)}, f"at most {HEADERS_MAX} headers"),
        ({"n": "secret" + "x" * HEADERS_BYTES_MAX}, f"at most {HEADERS_BYTES_MAX} bytes"),
    ],
)
def test_headers_are_bounded_text_and_no_message_shows_a_value(memory_app: Holdfast, headers: Any, told: str) -> None:
    work = with_task(memory_app)
    with pytest.raises(ConfigurationError, match=told) as refused:
        work.options(headers=headers)
    assert "secret" not in str(refused.value)

    @memory_app.on_enqueue
    def stamp(call: BoundCall[Any], found: dict[Any, Any]) -> None:
        found.update(headers if isinstance(headers, dict) else {"n": None})

    with pytest.raises(ConfigurationError):
        work.enqueue()
    assert list(memory_app.jobs()) == []


def test_headers_added_by_two_steps_are_bounded_together(memory_app: Holdfast) -> None:
    half = {str(n): "" for n in range(HEADERS_MAX)}
    with pytest.raises(ConfigurationError, match="at most"):
        with_task(memory_app).options(headers=half).options(headers={"one": "more"})


def test_a_cron_entry_keeps_the_headers_of_its_call(memory_app: Holdfast) -> None:
    work = with_task(memory_app)
    memory_app.cron.add("nightly", work.options(headers={"tenant": "acme"}).bind(), cron="0 3 * * *")
    assert memory_app.cron.run_now("nightly").refresh().headers == {"tenant": "acme"}


def test_headers_go_through_the_callers_own_connection(tmp_path: Path) -> None:
    with Holdfast(f"sqlite:///{tmp_path}/shop.db?share=true") as app:
        work = with_task(app)
        app.on_enqueue(lambda call, headers: headers.update(more="from the hook"))
        app.open()
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER)")
            job = work.using(connection=connection, headers={"tenant": "acme"}).enqueue()
            app.enqueue_many([work.using(connection=connection).bind()])
        app.work(drain=True)
        assert job.refresh().value == {"tenant": "acme", "more": "from the hook"}
        assert [one.value for one in app.jobs() if one.id != job.id] == [{"more": "from the hook"}]


def test_operators_change_a_job_and_its_headers_stay(sqlite_app: Holdfast) -> None:
    app = sqlite_app
    job = with_task(app).options(headers={"tenant": "acme"}).enqueue()
    app.bury(job)
    app.dead.revive(job.id, args={"fail": False})
    assert app.retry(app.cancel(job)).headers == {"tenant": "acme"}


def test_tags_travel_as_a_header_and_find_the_job(app: Holdfast) -> None:
    work = with_task(app)
    job = work.options(headers={"tenant": "acme"}, tags=["vip", "eu", "vip"]).enqueue()
    plain = work.options(tags="new").options(tags=None).enqueue()
    assert (job.tags, job.headers) == (("vip", "eu"), {"tenant": "acme", "tags": "vip,eu"})
    assert plain.tags == ()
    assert [one.id for one in app.jobs("tag:vip")] == [job.id]
    assert app.count("tag:e* header.tenant:acme").total == 1
    app.bury(job)
    app.bury(plain)
    assert [(one.id, one.tags, one.headers["tenant"]) for one in app.dead.list("tag:vip")] == [
        (job.id, ("vip", "eu"), "acme")
    ]
    assert [one.id for one in app.dead.list("-tag:vip")] == [plain.id]
    assert app.dead.get(plain.id).tags == ()
    for wrong in (["two words"], ["a,b"], [""], 5, [5]):
        with pytest.raises(ConfigurationError, match="tag"):
            work.options(tags=wrong)
