"""app.edit, reschedule, delete and dead.revive with changes: what is checked before the store is asked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast
from holdfast.edits import EditSettings
from holdfast.errors import ConfigurationError, InvalidArguments, JobNotFound, ResultGone, StateConflict
from holdfast.job import Job


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("memory://")

    @app.task(name="send")
    def send(to: str, when: datetime | None = None) -> None: ...

    return app


def enqueued(app: Holdfast) -> Job[None]:
    return app.tasks["send"].options(delay=60).enqueue("ann")


def test_edited_arguments_are_checked_by_the_signature(app: Holdfast) -> None:
    job = enqueued(app)
    with pytest.raises(InvalidArguments, match="adress"):
        app.edit(job, args={"adress": "bob"})
    with pytest.raises(InvalidArguments, match="to"):
        app.edit(job, args={"to": 7})
    with pytest.raises(InvalidArguments, match="missing 'to'"):
        app.edit(job, args={})
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    for given in (moment, "2030-01-01T00:00:00Z"):  # as Python has it, or as JSON says it
        assert app.tasks["send"]._decode(app.edit(job, args={"to": "bob", "when": given})._record.args) == {
            "to": "bob",
            "when": moment,
        }


def test_arguments_of_a_task_that_the_app_does_not_have_are_taken_as_they_are(app: Holdfast) -> None:
    job = app.task_by_name("elsewhere").enqueue(1)
    assert app.edit(job, args={"any": [1, 2]}).args == {"any": [1, 2]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 101},
        {"order": 1.5},
        {"order": datetime(2030, 1, 1)},
        {"order": 1 << 60},
        {"group": ""},
        {"queue": ""},
        {"args": ["ann"]},
        {"delay": 1, "at": datetime.now(UTC)},
        {"at": datetime(2030, 1, 1)},
    ],
)
def test_what_makes_no_sense_is_refused_before_the_store_is_asked(app: Holdfast, changes: EditSettings) -> None:
    job = enqueued(app)
    before = app._dump()
    with pytest.raises(ConfigurationError):
        app.edit(job, **changes)
    assert app._dump() == before


def test_reschedule_takes_a_delay_or_a_time(app: Holdfast) -> None:
    job = enqueued(app)
    at = datetime.now(UTC) + timedelta(hours=3)
    assert abs((app.reschedule(job, at=at).due_at - at).total_seconds()) < 0.001
    assert app.reschedule(job, delay=timedelta(0)).state == "ready"
    for given in ({}, {"delay": 1.0, "at": at}):
        with pytest.raises(ConfigurationError):
            app.reschedule(job, **given)  # type: ignore[arg-type]


def test_a_dead_job_is_revived_with_other_arguments(app: Holdfast) -> None:
    job = enqueued(app)
    app.bury(job)
    with pytest.raises(InvalidArguments):
        app.dead.revive(job, args={"to": 7})
    assert app.job(job.id).state == "dead"
    revived = app.dead.revive(job, args={"to": "bob"}, delay=60)
    assert (revived.state, revived.args) == ("scheduled", {"to": "bob"})


def test_a_deleted_job_is_gone_and_its_call_does_not_bring_it_back(app: Holdfast) -> None:
    call = app.tasks["send"].bind("ann")
    job = app.enqueue(call)
    was = app.delete(job)
    assert (was.state, was.args) == ("ready", {"to": "ann"})
    again = app.enqueue(call)
    assert not again.created
    with pytest.raises(JobNotFound):
        app.job(job.id)
    with pytest.raises(ResultGone):
        again.result(timeout=5)
    with pytest.raises(JobNotFound):
        app.delete(job)


def test_an_edit_of_a_job_that_has_ended_is_refused(app: Holdfast) -> None:
    job = enqueued(app)
    app.cancel(job)
    with pytest.raises(StateConflict, match="Only jobs that have not started"):
        app.edit(job, priority=1)


def test_an_order_is_changed_by_a_number_or_a_time(app: Holdfast) -> None:
    job = app.tasks["send"].options(delay=60, group="g", order=7).enqueue("ann")
    assert app.edit(job, order=-3).order == -3
    assert app.edit(job, order=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).order == 1_000_000
    assert app.edit(job, order=None).order is None
    assert app.bulk("edit", "group:g", order=5).done.keys() == {job.id}
    assert app.job(job.id).order == 5


def test_the_twins_do_the_same(app: Holdfast) -> None:
    async def walk() -> None:
        job = await app.tasks["send"].options(delay=60).aenqueue("ann")
        assert (await app.aedit(job, priority=3)).priority == 3
        assert (await app.areschedule(job, delay=0)).state == "ready"
        await app.abury(job)
        assert (await app.dead.arevive(job, args={"to": "bob"})).args == {"to": "bob"}
        await app.adelete(job)

    asyncio.run(walk())
