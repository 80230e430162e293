"""app.dead.note, notes and stats; app.keys.free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import Bury, Holdfast
from holdfast.errors import JobNotFound
from holdfast.testing import sandbox


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("memory://") as made:
        yield made


def test_notes_are_kept_with_the_job_and_survive_a_revival(app: Holdfast) -> None:
    @app.task(name="t")
    def task() -> None:
        raise Bury("no")

    job = task.enqueue()
    app.work(drain=True)
    app.dead.note(job, "rang ann", by="bob")
    app.dead.revive(job)
    asyncio.run(app.dead.anote(app.dead.get(job.id), "again"))
    assert [(one.by, one.text) for one in app.dead.notes(job.id)] == [("bob", "rang ann"), ("", "again")]
    assert asyncio.run(app.dead.anotes(job))[0].text == "rang ann"
    assert [one.text for one in app.history(job.id) if one.kind == "note"] == ["rang ann", "again"]
    with pytest.raises(JobNotFound):
        app.dead.note("nobody", "x")


def test_dead_letters_are_counted_by_task_reason_and_day(app: Holdfast) -> None:
    with sandbox(app) as box:

        @app.task(name="a", queue="one")
        def a() -> None:
            raise Bury("no")

        @app.task(name="b", queue="two", retry=0)
        def b() -> None:
            raise ValueError

        a.enqueue()
        a.enqueue()
        box.drain()
        first = app.now().date().isoformat()
        box.clock.advance(days=1)
        b.enqueue()
        box.drain()
        found = app.dead.stats()
        assert (found.letters, found.deaths, found.capped) == (3, 3, False)
        assert list(found.by_task.items()) == [("a", 2), ("b", 1)]
        assert list(found.by_reason.items()) == [("bury", 2), ("failed", 1)]
        assert list(found.by_day.items()) == [(app.now().date().isoformat(), 1), (first, 2)]
        assert asyncio.run(app.dead.astats(queue="two")).by_task == {"b": 1}
        assert app.dead.stats(queue="none").letters == 0


def test_a_freed_key_makes_room_for_a_new_job(app: Holdfast) -> None:
    @app.task(name="warn", key=lambda user: user, on_conflict="throttle", window=3600)
    def warn(user: str) -> None: ...

    @app.task(name="other", key=lambda user: user)
    def other(user: str) -> None: ...

    first, beside = warn.enqueue("ann"), other.enqueue("ann")
    app.work(drain=True)
    assert not warn.enqueue("ann").is_new
    assert [job.id for job in app.keys.free("ann", task=warn, queue="default", by="bob")] == [first.id]
    second = warn.enqueue("ann")
    assert second.is_new and beside.id != second.id
    assert asyncio.run(app.keys.afree("nobody")) == []
    assert app.audit().violations == []
