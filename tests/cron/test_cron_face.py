"""`app.cron`: declaring, adding, looking and changing, through both twins."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, CronEntryNotFound, Holdfast, State, TaskRouter
from holdfast.cron.api import Cron
from holdfast.errors import ConfigurationError
from holdfast.testing import sandbox

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def nightly(app: Holdfast, **settings: Any) -> Any:
    @app.task(name="report")
    def report(day: str = "today") -> str:
        return day

    app.cron("0 3 * * *", **settings)(report)
    return report


def test_every_method_has_a_twin_with_the_same_parameters() -> None:
    verbs = {name for name in dir(Cron) if not name.startswith("_")} - {"declared"}
    plain = {name for name in verbs if not inspect.iscoroutinefunction(getattr(Cron, name))}
    assert verbs - plain == {f"a{name}" for name in plain}
    for name in plain:
        ours, theirs = getattr(Cron, name), getattr(Cron, f"a{name}")
        assert inspect.signature(ours) == inspect.signature(theirs), name
        assert ours.__doc__


def test_a_declared_entry_is_stored_by_a_worker_and_fires_when_due(app: Holdfast) -> None:
    nightly(app, args={"day": "yesterday"})
    with sandbox(app, start=START) as box:
        assert app.cron.list() == []
        box.drain()
        [entry] = app.cron.list()
        assert (entry.name, entry.task, entry.queue, entry.args) == (
            "report",
            "report",
            "default",
            {"day": "yesterday"},
        )
        assert entry.next_at == datetime(2026, 3, 1, 3, tzinfo=UTC)
        assert (entry.declared, entry.in_code, entry.fired) == (True, True, 0)
        box.clock.advance(hours=3)
        assert box.drain().succeeded == 1
        entry = app.cron.get("report")
        assert (entry.fired, entry.last_at) == (1, datetime(2026, 3, 1, 3, tzinfo=UTC))
        assert entry.last_job is not None
        assert app.job(entry.last_job).value == "yesterday"
        assert box.drain().succeeded == 0


def test_decorators_stack_and_make_tasks_of_plain_functions(app: Holdfast) -> None:
    def clean(ctx: Context) -> None: ...

    task = app.cron(every=30, name="often")(app.task(name="clean")(clean))
    app.cron("@daily", name="daily")(task)
    assert app.tasks["clean"] is task
    assert [(entry.name, entry.every, entry.cron) for entry in app._cron_entries()] == [
        ("often", 30.0, None),
        ("daily", None, "0 0 * * *"),
    ]
    with pytest.raises(ConfigurationError, match="local function"):
        app.cron(every=30)(clean)  # made a task, which needs a name here
    with pytest.raises(ConfigurationError, match="already declared"):
        app.cron(every=5, name="daily")(task)


def test_what_cannot_be_called_so_is_refused_where_it_is_declared(app: Holdfast) -> None:
    @app.task(name="send")
    def send(to: str) -> None: ...

    with pytest.raises(Exception, match="to"):
        app.cron(every=5)(send)
    with pytest.raises(Exception, match="colour"):
        app.cron(every=5, args={"to": "ann", "colour": "red"})(send)
    with pytest.raises(ConfigurationError, match="say when"):
        app.cron(send)  # type: ignore[arg-type]


def test_included_tasks_can_have_entries(app: Holdfast) -> None:
    tasks = TaskRouter()

    @tasks.task(name="shared")
    def shared() -> None: ...

    app.include(tasks)
    app.cron(every=60)(shared)
    assert [entry.name for entry in app._cron_entries()] == ["shared"]


def test_an_entry_made_at_run_time_lives_in_the_store(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task(name="send")
    def send(to: str) -> None:
        seen.append(to)

    with sandbox(app, start=START) as box:
        entry = app.cron.add("ann", send.bind("ann"), "0 * * * *", overlap="skip")
        assert (entry.declared, entry.in_code, entry.args) == (False, None, {"to": "ann"})
        app.cron.add("bob", send.bind("bob"), every=timedelta(minutes=30))
        box.clock.advance(hours=1)
        box.drain()
        assert sorted(seen) == ["ann", "bob"]
        changed = app.cron.add("ann", send.bind("anna"), "0 * * * *")
        assert (changed.fired, changed.args, changed.overlap) == (1, {"to": "anna"}, "allow")
        assert app.cron.remove("ann").name == "ann"
        assert [entry.name for entry in app.cron.list()] == ["bob"]
        for call in (app.cron.get, app.cron.remove, app.cron.pause, app.cron.resume, app.cron.run_now, app.cron.next):
            with pytest.raises(CronEntryNotFound):
                call("ann")


def test_a_declared_entry_is_changed_in_code_alone(app: Holdfast) -> None:
    report = nightly(app)
    with sandbox(app, start=START) as box:
        box.drain()
        with pytest.raises(ConfigurationError, match="declared in code"):
            app.cron.add("report", report, every=5)
        app.cron.remove("report")
        box.drain()
        assert [entry.name for entry in app.cron.list()] == ["report"]


def test_what_left_the_code_is_seen_and_does_not_fire(app: Holdfast) -> None:
    nightly(app)
    with sandbox(app, start=START) as box:
        box.drain()
        app.cron._declared.clear()
        box.clock.advance(days=2)
        assert box.drain().succeeded == 0
        [entry] = app.cron.list()
        assert (entry.in_code, entry.declared, entry.fired) == (False, True, 0)
        assert entry.declared_at == datetime(2026, 3, 1, tzinfo=UTC)


def test_a_paused_entry_rests_and_goes_on_from_then(app: Holdfast) -> None:
    nightly(app)
    with sandbox(app, start=START) as box:
        box.drain()
        paused = app.cron.pause("report", reason="holidays", by="ann")
        assert (paused.pause_reason, paused.paused_by, paused.next_at) == ("holidays", "ann", None)
        assert app.cron.pause("report", reason="other").pause_reason == "holidays"
        assert app.cron.next("report") == []
        box.clock.advance(days=10)
        assert box.drain().succeeded == 0
        resumed = app.cron.resume("report")
        assert (resumed.paused_at, resumed.next_at) == (None, datetime(2026, 3, 11, 3, tzinfo=UTC))
        assert app.cron.resume("report") == resumed


def test_the_next_ticks_are_listed(app: Holdfast) -> None:
    nightly(app)
    with sandbox(app, start=START) as box:
        box.drain()
        days = [datetime(2026, 3, day, 3, tzinfo=UTC) for day in range(1, 4)]
        assert app.cron.next("report", 3) == days


def test_a_job_besides_the_ticks_counts_as_the_previous_one(app: Holdfast) -> None:
    nightly(app, overlap="skip")
    with sandbox(app, start=START) as box:
        box.drain()
        job = app.cron.run_now("report")
        assert (job.created, job.state, job.task) == (True, State.READY, "report")
        assert app.cron.get("report").last_job == job.id
        app.pause(task="report")
        box.clock.advance(hours=4)
        box.drain()
        entry = app.cron.get("report")
        assert (entry.fired, entry.skipped) == (0, 1)
        app.resume(task="report")
        assert box.drain().succeeded == 1


def test_overlap_cancel_replaces_the_previous_job(app: Holdfast) -> None:
    nightly(app, overlap="cancel")
    with sandbox(app, start=START) as box:
        box.drain()
        job = app.cron.run_now("report")
        app.pause(task="report")
        box.clock.advance(hours=4)
        box.drain()
        assert job.refresh().state is State.CANCELLED
        app.resume(task="report")
        assert box.drain().succeeded == 1


def test_overlap_queue_runs_one_at_a_time(app: Holdfast) -> None:
    running: list[int] = []

    @app.cron("* * * * *", overlap="queue", catch_up="all", name="busy")
    @app.task(name="busy")
    async def busy() -> None:
        running.append(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert running == [1]
        running.pop()

    with sandbox(app, start=START) as box:
        box.drain()
        box.clock.advance(minutes=10)
        drained = box.drain()
        assert (drained.succeeded, drained.failed) == (10, 0)


def test_a_backfill_fills_the_gaps_and_repeats_nothing(app: Holdfast) -> None:
    nightly(app)
    with sandbox(app, start=START) as box:
        box.drain()
        box.clock.advance(days=5)
        box.drain()
        start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 6, tzinfo=UTC)
        plan = app.cron.backfill("report", start, end, dry_run=True)
        assert [tick.created for tick in plan] == [True] * 4 + [False]
        assert box.drain().succeeded == 0
        made = app.cron.backfill("report", start, end)
        assert made == plan
        assert box.drain().succeeded == 4
        assert not any(tick.created for tick in app.cron.backfill("report", start, end))
        with pytest.raises(ConfigurationError, match="has passed"):
            app.cron.backfill("report", start, end + timedelta(days=30))
        with pytest.raises(ConfigurationError, match="aware datetimes"):
            app.cron.backfill("report", datetime(2026, 3, 1), end)
        with pytest.raises(ConfigurationError, match="back to the year 1970"):
            app.cron.backfill("report", datetime(1, 1, 1, tzinfo=UTC), end)
        often = app.cron.add("often", app.tasks["report"].bind(), every=1)
        box.clock.advance(days=1)
        with pytest.raises(ConfigurationError, match="more than 10000 ticks"):
            app.cron.backfill("often", often.created_at, often.created_at + timedelta(days=1))


def keyed(app: Holdfast, **options: Any) -> Any:
    @app.task(name="keyed", key="k", **options)
    def report() -> None: ...

    return report


@pytest.mark.parametrize("conflict", ["keep", "raise"])
def test_a_backfill_of_jobs_with_one_key_makes_the_first(app: Holdfast, conflict: Any) -> None:
    with sandbox(app, start=START) as box:
        app.cron.add("e", keyed(app, on_conflict=conflict), "0 * * * *")
        box.clock.advance(hours=3)
        made = app.cron.backfill("e", app.now() - timedelta(hours=3), app.now())
        assert [tick.created for tick in made] == [True, False, False]
        assert len({tick.id for tick in made}) == 1


@pytest.mark.parametrize("overlap", ["allow", "skip", "cancel"])
def test_a_tick_that_a_key_kept_from_making_a_job_leaves_the_last_job_as_it_was(app: Holdfast, overlap: Any) -> None:
    report = keyed(app)
    with sandbox(app, start=START) as box:
        app.cron.add("e", report, "0 * * * *", overlap=overlap)
        by_hand = report.enqueue()
        app.pause(task="keyed")
        box.clock.advance(hours=1)
        box.drain()
        entry = app.cron.get("e")
        assert (entry.fired, entry.last_job) == (1, None)
        assert app.cron.run_now("e").id == by_hand.id
        assert app.cron.get("e").last_job is None
        box.clock.advance(hours=1)
        box.drain()
        assert by_hand.refresh().state is State.READY  # nobody else's job is taken for the entry's own
        app.resume(task="keyed")
        box.drain()
        job = app.cron.run_now("e")
        app.pause(task="keyed")
        assert app.cron.run_now("e").id == job.id
        assert app.cron.get("e").last_job == job.id


def test_a_tick_that_renewed_a_waiting_call_has_that_job(app: Holdfast) -> None:
    report = keyed(app, on_conflict="keep_last")
    with sandbox(app, start=START) as box:
        app.cron.add("e", report, "0 * * * *", overlap="cancel")
        waiting = report.enqueue()
        app.pause(task="keyed")
        box.clock.advance(hours=1)
        box.drain()
        assert app.cron.get("e").last_job == waiting.id


def test_the_twins_do_the_same(app: Holdfast) -> None:
    report = nightly(app)

    async def main() -> None:
        assert (await app.cron.aadd("x", report, every=60)).every == 60.0
        assert [entry.name for entry in await app.cron.alist()] == ["x"]
        assert (await app.cron.aget("x")).task == "report"
        assert (await app.cron.apause("x", reason="r")).pause_reason == "r"
        assert (await app.cron.aresume("x")).paused_at is None
        assert (await app.cron.arun_now("x")).created
        assert len(await app.cron.anext("x", 3)) == 3
        now = await app.anow()
        assert await app.cron.abackfill("x", now - timedelta(hours=1), now) == []
        assert (await app.cron.aremove("x")).name == "x"

    asyncio.run(main())


def test_entries_make_jobs_of_tasks_and_calls_only(app: Holdfast) -> None:
    report = nightly(app)
    with pytest.raises(ConfigurationError, match="of a str"):
        app.cron.add("x", "report", every=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="transaction"):
        app.cron.add("x", report.options(connection=object()).bind(), every=5)
    with pytest.raises(ConfigurationError, match="due at their ticks"):
        app.cron.add("x", report.options(delay=5).bind(), every=5)
