"""What a worker logs about jobs, which jobs, and where the records of handlers go."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp, soon

from holdfast import Bury, Context, RetryPolicy, Snooze, logs
from holdfast.cli.log_output import JSONFormatter, LogfmtFormatter, TextFormatter, logs_on_stderr
from holdfast.clock import ManualClock
from holdfast.inspection.history import history
from holdfast.lifecycle import Ending, Settlement
from holdfast.options import LogJobs
from holdfast.records import Lease
from holdfast.worker.keeper.runners import LINES_PER_SECOND, InProcessRunners, JobLog


def about_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "holdfast.jobs"]


def events_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in about_jobs(caplog)]


@pytest.mark.parametrize(
    ("which", "seen"),
    [
        (None, ["started", "succeeded", "started", "failed", "started", "dead", "started", "dead"]),
        ("all", ["started", "succeeded", "started", "failed", "started", "dead", "started", "dead"]),
        ("failures", ["failed", "dead", "dead"]),
        ("none", []),
    ],
)
async def test_which_jobs_get_lines(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture, which: LogJobs | None, seen: list[str]
) -> None:
    caplog.set_level("INFO", logger="holdfast")

    @memory_app.task(name="good")
    async def good() -> None:
        return None

    @memory_app.task(name="bad", retry=RetryPolicy.fixed(0, limit=1))
    async def bad() -> None:
        raise ConnectionError("no route")

    @memory_app.task(name="given_up")
    async def given_up() -> None:
        raise Bury("not wanted")

    for task in (good, bad, given_up):
        await memory_app.put(task.bind())
        await memory_app.drain(log_jobs=which)
    assert events_of(caplog) == seen
    if which is None:
        first, second, _, failed, _, dead, _, buried = about_jobs(caplog)
        assert "(good) started, attempt 1: waited" in first.getMessage()
        assert "(good) succeeded on attempt 1: waited" in second.getMessage() and ", ran " in second.getMessage()
        assert failed.levelname == "WARNING" and "ConnectionError: no route; next try in 0.000 s" in failed.getMessage()
        assert 'in bad: raise ConnectionError("no route")' in failed.getMessage()
        assert f"`holdfast job {vars(failed)['job_id']}` shows more" in failed.getMessage()
        assert dead.levelname == "ERROR" and "is dead (failed) after attempt 2" in dead.getMessage()
        assert "is dead (bury)" in buried.getMessage() and "not wanted" in buried.getMessage()
        assert vars(dead)["attempt"] == 2 and vars(dead)["error_type"] == "ConnectionError"


async def test_a_snooze_and_a_cancellation_are_logged(memory_app: WorkerApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdfast")

    @memory_app.task(name="later")
    async def later() -> None:
        raise Snooze(3600)

    await memory_app.put(later.bind())
    await memory_app.drain()
    assert events_of(caplog) == ["started", "snoozed"] and "again in 3,600 s" in caplog.text
    lease = Lease("id", "token", 1, "t", "q", b"{}")
    JobLog("all", ManualClock()).ended(lease, Settlement(id="id", token=lease.token, ending=Ending.CANCELLED), 0.0)
    assert events_of(caplog)[-1] == "cancelled"


async def test_a_job_that_is_given_back_is_logged(memory_app: WorkerApp, caplog: pytest.LogCaptureFixture) -> None:
    """Such as one that was claimed ahead: its line says started, although it did not begin."""
    caplog.set_level("INFO", logger="holdfast")

    begun = asyncio.Event()

    @memory_app.task(name="waits")
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    [job_id] = await memory_app.put(waits.bind())
    worker = memory_app.worker(grace=0.0)
    running = asyncio.create_task(worker.run(signals=False))
    await soon(begun)
    worker.request_stop()
    await running
    assert events_of(caplog) == ["started", "released"]
    assert "released unfinished: attempt 1 does not count" in caplog.text
    timeline = await history(await memory_app.store(), job_id)
    assert [entry.kind for entry in timeline] == ["enqueued", "claimed", "release"]


async def test_the_run_time_counts_from_the_handlers_beginning(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease may wait in its runner, and an outcome for its exchange; neither is the handler's time."""
    caplog.set_level("INFO", logger="holdfast")
    clock, log = ManualClock(), JobLog("all", ManualClock())
    lease = Lease("id", "token", 1, "t", "q", b"{}", started_at=1000.0)
    log.started([lease])
    log.succeeded([lease], [0.25], clock.steady() + 9.0)
    failed = Settlement(id="id", token=lease.token, ending=Ending.RETRY, ran=0.5)
    log.ended(lease, failed, clock.steady() + 9.0)
    assert [vars(record)["run_seconds"] for record in about_jobs(caplog)[1:]] == [0.25, 0.5]
    settled: list[Settlement] = []

    @memory_app.task(name="twice", retry=RetryPolicy.fixed(0, limit=1))
    async def twice(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    monkeypatch.setattr(JobLog, "ended", lambda self, lease, one, at: settled.append(one))
    await memory_app.put(twice.bind())
    await memory_app.drain()
    assert [one.ran is not None and 0.0 < one.ran < 300.0 for one in settled] == [True]


async def test_a_busy_worker_sums_up_unless_told_to_log_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdfast")
    clock = ManualClock()
    leases = [Lease(f"j{n}", f"t{n}", 1, f"task{n % 2}", "q", b"{}") for n in range(3 * LINES_PER_SECOND)]
    log = JobLog(None, clock)
    log.started(leases)
    log.succeeded(leases, [None] * len(leases), clock.steady())
    log.released(leases[0])
    log.close()
    assert events_of(caplog) == ["started"] * LINES_PER_SECOND + ["summed_up"]
    summary = about_jobs(caplog)[-1]
    assert "1 released and 200 started and 300 succeeded more jobs" in summary.getMessage()
    assert vars(summary)["counts"]["succeeded task1"] == 150
    caplog.clear()
    clock.advance(1.0)
    log.started(leases[:5])
    assert events_of(caplog) == ["started"] * 5
    caplog.clear()
    JobLog("all", clock).started(leases)
    assert len(about_jobs(caplog)) == len(leases)


async def test_the_summary_comes_by_itself(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.keeper.runners.SUM_UP_SECONDS", 0.001)
    caplog.set_level("INFO", logger="holdfast")
    told = asyncio.Event()
    monkeypatch.setattr(logs, "job_summed_up", lambda counts, seconds: told.set())
    JobLog(None, ManualClock()).started([Lease("j", "t", 1, "t", "q", b"{}")] * (LINES_PER_SECOND + 1))
    await asyncio.wait_for(told.wait(), 30)
    assert len(about_jobs(caplog)) == LINES_PER_SECOND


@pytest.mark.parametrize(
    ("text", "args", "shown"),
    [
        ("no user ann@example.com", b'{"to": "ann@example.com"}', "no user …"),
        ("card 4111111111111111 is bad", b'{"a": {"b": [4111111111111111]}}', "card … is bad"),
        (r"got 'one\ttwo'", rb'{"x": "one\ttwo"}', "got '…'"),
        ("line one\nERROR forged\x1b[31m", b"{}", "line one ERROR forged\\x1b[31m"),
        ("cannot reach postgresql://ann:pass@host/db", b"{}", "cannot reach postgresql://ann:***@host/db"),
        ("whatever", b'{"x": "' + b"y" * 70_000 + b'"}', ""),
        ("whatever", b"not json", ""),
        ("7 of 12", b'{"n": 7, "m": 12, "yes": true, "w": "of"}', "7 of 12"),
        ("z" * 900, b"{}", "z" * 500 + "…"),
    ],
)
def test_an_exceptions_text_is_logged_without_arguments_and_passwords(text: str, args: bytes, shown: str) -> None:
    assert logs.masked(text, args) == shown


async def test_records_of_handlers_reach_the_log_of_their_job(app: WorkerApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    factory, log = logging.getLogRecordFactory(), logging.getLogger("shop.mail")

    def handle(which: str) -> None:
        log.info("for %s", which, extra={"size": 3})
        log.debug("below the level")
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("oops")

    @app.task(name="sync")
    def in_thread(ctx: Context) -> None:
        handle("sync")

    @app.task(name="async")
    async def on_loop() -> None:
        handle("async")

    one, two = await app.put(in_thread.bind(), on_loop.bind())
    await app.drain()
    for job_id, which in ((one, "sync"), (two, "async")):
        lines = [line.text for line in await (await app.store()).logs(job_id)]
        assert lines == [f"INFO shop.mail: for {which}", "ERROR shop.mail: oops (ValueError: why)"]
        [record] = [record for record in caplog.records if record.getMessage() == f"for {which}"]
        assert vars(record)["holdfast_job"] == job_id and vars(record)["holdfast_task"] == which
    assert logging.getLogRecordFactory() is factory  # as it was, once no worker runs here


def record(**facts: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "sent", "created": 0.0, **facts})


def test_the_forms_of_a_record() -> None:
    facts: dict[str, Any] = {"holdfast_job": "j1", "holdfast_task": "t", "size": 3, "who": 'a "b"', "odd": object}
    assert TextFormatter().format(record(**facts)).endswith("INFO    shop: sent [job j1 (t)]")
    document = json.loads(JSONFormatter().format(record(**facts)))
    assert document == {
        "timestamp": "1970-01-01T00:00:00.000Z",
        "level": "info",
        "logger": "shop",
        "message": "sent",
        "job_id": "j1",
        "task": "t",
        "size": 3,
        "who": 'a "b"',
        "odd": "<class 'object'>",
    }
    line = LogfmtFormatter().format(record(**facts))
    assert line.startswith("ts=1970-01-01T00:00:00.000Z level=info logger=shop msg=sent job_id=j1 task=t size=3")
    assert line.endswith('who="a \\"b\\"" odd="<class \'object\'>"')


def test_no_format_lets_a_record_control_a_terminal() -> None:
    evil = record(msg="a\x1b[31mb", extra="\x1b]0;x")
    for form in (TextFormatter(), JSONFormatter(), LogfmtFormatter()):
        assert "\x1b" not in form.format(evil)


def test_our_messages_with_fields_are_one_line_in_json() -> None:
    ours = record(name="holdfast.jobs", msg="job j failed\n    File x", event="failed", traceback="File x")
    assert json.loads(JSONFormatter().format(ours))["message"] == "job j failed"
    try:
        raise ValueError("why")
    except ValueError:
        theirs = record(exc_info=sys.exc_info(), msg="two\nlines")
    document = json.loads(JSONFormatter().format(theirs))
    assert document["message"] == "two\nlines" and document["exception"].endswith("ValueError: why")
    assert 'exception="Traceback' in LogfmtFormatter().format(theirs)
    assert "ValueError: why" in TextFormatter().format(theirs)


def test_a_structlog_record_is_its_event_and_its_fields() -> None:
    event = record(msg={"event": "charged", "cents": 500, "_record": None})
    assert TextFormatter().format(event).endswith("shop: charged cents=500")


@pytest.mark.parametrize("configured", [True, False])
def test_afterwards_the_levels_are_as_they_were(configured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    root, own = logging.getLogger(), logging.getLogger("holdfast")
    monkeypatch.setattr(root, "handlers", [logging.NullHandler()] if configured else [])
    levels = root.level, own.level
    with logs_on_stderr("debug", "text"):
        assert own.level == logging.DEBUG
    assert (root.level, own.level) == levels and len(root.handlers) == configured


@pytest.mark.parametrize("listened", [False, True])
async def test_a_job_of_a_group_starts_before_the_success_of_the_one_before_is_told(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch, listened: bool
) -> None:
    """Unless somebody listens to successes, who is to hear of it first."""
    seen: list[str] = []

    def noted(what: str, kind: type, method: str) -> None:
        real = getattr(kind, method)

        def call(self: Any, leases: Any, *more: Any) -> None:
            seen.append(what)
            real(self, leases, *more)

        monkeypatch.setattr(kind, method, call)

    noted("start", InProcessRunners, "start")
    noted("log success", JobLog, "succeeded")
    noted("log start", JobLog, "started")

    @memory_app.task(name="good")
    async def good() -> None:
        return None

    if listened:
        memory_app._hub.on("succeeded")(lambda event: None)
    for _ in range(2):
        await memory_app.put(good.options(group="one").bind())
    await memory_app.drain(slots=2)
    between = ["log success", "start"] if listened else ["start", "log success"]
    assert seen == ["start", "log start", *between, "log start", "log success"]
