"""app.bulk: one verb on every job that matches, each job once, also when it is repeated after a crash."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.bulk import BulkSettings
from holdfast.errors import BackendUnavailable, ConfigurationError, InvalidArguments, QueueBusy, StateConflict
from holdfast.lifecycle import State


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("memory://")

    @app.task(name="mail.send", queue="mail")
    def send(n: int) -> None: ...

    @app.task(name="pdf.draw")
    def draw(n: int) -> None: ...

    return app


def fill(app: Holdfast, number: int = 5, **settings: Any) -> list[str]:
    return [app.tasks["mail.send"].options(**settings).enqueue(n).id for n in range(number)]


def states(app: Holdfast, ids: list[str]) -> list[State]:
    return [app.job(id).state for id in ids]


def test_a_verb_acts_on_what_matches_and_on_nothing_else(app: Holdfast) -> None:
    ids = fill(app)
    other = app.tasks["pdf.draw"].enqueue(1)
    seen: list[tuple[int, int]] = []
    result = app.bulk("cancel", "task:mail.*", by="ann", progress=lambda done, of: seen.append((done, of)))
    assert (list(result.matched), sorted(result.done), result.refused, result.stopped) == (ids, ids, {}, None)
    assert states(app, ids) == [State.CANCELLED] * 5
    assert app.job(other.id).state is State.READY
    assert seen[-1] == (5, 5)


def test_a_dry_run_changes_nothing(app: Holdfast) -> None:
    ids = fill(app)
    before = app._dump()
    result = app.bulk("delete", "queue:mail", dry_run=True)
    assert (list(result.matched), result.done) == (ids, {})
    assert app._dump() == before


@pytest.mark.parametrize(
    ("verb", "settings", "expected"),
    [
        ("run_now", {}, State.READY),
        ("bury", {"reason": "wrong"}, State.DEAD),
        ("reschedule", {"delay": timedelta(hours=1)}, State.SCHEDULED),
        ("edit", {"priority": 7}, State.SCHEDULED),
        ("edit", {"queue": "slow"}, State.SCHEDULED),
        ("cancel", {}, State.CANCELLED),
    ],
)
def test_every_verb_on_scheduled_jobs(app: Holdfast, verb: str, settings: BulkSettings, expected: State) -> None:
    ids = fill(app, delay=60)
    result = app.bulk(verb, "queue:mail", **settings)
    assert set(result.done.values()) == {expected.value}
    assert states(app, ids) == [expected] * 5
    if "priority" in settings:
        assert {app.job(id).priority for id in ids} == {7}
    if "queue" in settings:
        assert {app.job(id).queue for id in ids} == {"slow"}


def test_a_retry_that_is_repeated_as_of_its_start_takes_no_job_twice(app: Holdfast) -> None:
    ids = fill(app)
    app.work(drain=True)
    first = app.bulk("retry", "state:succeeded")
    assert len(first.done) == 5
    app.work(drain=True)  # all of them have succeeded again when the interrupted run is repeated
    again = app.bulk("retry", "state:succeeded", as_of=first.as_of)
    assert (again.matched, again.done) == ([], {})
    assert states(app, ids) == [State.SUCCEEDED] * 5
    assert len(app.bulk("retry", "state:succeeded").done) == 5  # a new run takes them


def test_revived_jobs_become_due_at_the_rate(app: Holdfast) -> None:
    ids = fill(app)
    for id in ids:
        app.bury(id)
    start = app.now()
    result = app.bulk("revive", "queue:mail", rate="2/s", args={"n": 9})
    assert len(result.done) == 5
    due = sorted((app.job(id).due_at - start).total_seconds() for id in ids)
    assert [round(after) for after in due] == [0, 0, 1, 2, 2] or [int(after * 2) for after in due] == [0, 1, 2, 3, 4]
    assert {app.job(id).args["n"] for id in ids} == {9}


def test_arguments_that_do_not_fit_a_task_refuse_its_jobs_and_no_other(app: Holdfast) -> None:
    fill(app)
    other = app.task_by_name("elsewhere", queue="mail").enqueue(1)
    result = app.bulk("edit", "queue:mail", args={"m": 1})
    assert list(result.done) == [other.id]
    assert {type(error) for error in result.refused.values()} == {InvalidArguments}


def test_what_changed_meanwhile_is_refused_by_itself(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(app, delay=60)
    backend = app._backend
    real = backend.run_now

    async def rival(job_id: str, now: float | None = None, *, by: str = "") -> Any:
        if job_id == ids[2]:
            await backend.cancel(job_id)
        return await real(job_id, now, by=by)

    monkeypatch.setattr(backend, "run_now", rival)
    result = app.bulk("run_now", "queue:mail")
    assert list(result.refused) == [ids[2]]
    assert isinstance(result.refused[ids[2]], StateConflict)
    assert len(result.done) == 4


def test_a_store_that_goes_away_ends_it_and_the_rest_can_be_done_later(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(app, 100)
    backend = app._backend
    real, calls = backend.cancel, 0

    async def cut_off(job_id: str, now: float | None = None, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise BackendUnavailable("gone")
        return await real(job_id, now, **more)

    monkeypatch.setattr(backend, "cancel", cut_off)
    first = app.bulk("cancel", "queue:mail")
    assert isinstance(first.stopped, BackendUnavailable)
    assert len(first.done) == 40 and calls < 60
    monkeypatch.undo()
    again = app.bulk("cancel", "queue:mail", as_of=first.as_of)
    assert len(again.done) == 60
    assert not first.done.keys() & again.done.keys()


@pytest.mark.parametrize(
    ("verb", "settings"),
    [
        ("explode", {}),
        ("cancel", {"priority": 1}),
        ("cancel", {"rate": "1/s"}),
        ("reschedule", {}),
        ("edit", {}),
        ("revive", {"rate": "1/s", "delay": 1}),
        ("cancel", {"speed": 9}),
    ],
)
def test_what_makes_no_sense_is_refused(app: Holdfast, verb: str, settings: BulkSettings) -> None:
    with pytest.raises(ConfigurationError):
        app.bulk(verb, "queue:mail", **settings)


def test_the_twin_does_the_same(app: Holdfast) -> None:
    async def walk() -> None:
        await app.tasks["mail.send"].aenqueue(1)
        assert len((await app.abulk("delete", "queue:mail")).done) == 1
        assert (await app.acounts("mail"))["mail"]["ready"] == 0

    asyncio.run(walk())


def test_emptying_a_queue_leaves_what_runs_and_what_has_ended(app: Holdfast) -> None:
    fill(app, delay=60)
    done = app.tasks["mail.send"].enqueue(1)
    app.cancel(done)
    kept = app.tasks["pdf.draw"].enqueue(1)
    assert len(app.queues.empty("mail", by="ann").done) == 5
    assert app.job(done.id).state is State.CANCELLED
    assert app.job(kept.id).state is State.READY


def test_an_obliterated_queue_is_gone_with_its_letters_overrides_and_pauses(app: Holdfast) -> None:
    ids = fill(app)
    app.bury(ids[0])
    app.tasks["mail.send"].options(group="g").enqueue(1)
    app.queues.limit("mail", 3)
    app.groups.limit("mail", "g", rate="1/s")
    app.pause(queue="mail", group="g")
    result = app.queues.obliterate("mail")
    assert len(result.done) == 6
    assert "mail" not in {queue.name for queue in app.queues.list()}
    dump = app._dump()
    assert [dump.tables[name] for name in ("jobs", "letters", "overrides", "pauses")] == [(), (), (), ()]
    assert app.queues.obliterate("mail").matched == []  # repeated: nothing is left to do


def test_a_busy_queue_is_not_obliterated_and_goes_on(app: Holdfast) -> None:
    fill(app)

    async def walk() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        @app.task(name="mail.slow", queue="mail")
        async def slow() -> None:
            begun.set()
            await may_end.wait()

        await slow.aenqueue()
        async with app.worker(["mail"], slots=20):
            await asyncio.wait_for(begun.wait(), 20)
            with pytest.raises(QueueBusy) as busy:
                await app.queues.aobliterate("mail")
            assert busy.value.queue == "mail"
            assert await app._ado(lambda backend: backend.pauses()) == []
            waiting = asyncio.ensure_future(app.queues.aobliterate("mail", wait=30))
            may_end.set()
            await asyncio.wait_for(waiting, 30)
            assert (await app.acounts("mail"))["mail"]["running"] == 0

    asyncio.run(walk())
    assert "mail" not in app.counts()
