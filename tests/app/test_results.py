"""Waiting for results, and the Job object."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast import Bury, Context, Holdfast, Job, RetryPolicy, State
from holdfast.errors import (
    BackendError,
    ConfigurationError,
    JobCancelled,
    JobDied,
    JobNotFound,
    ResultGone,
    StateConflict,
    WaitTimedOut,
)


@dataclasses.dataclass
class Point:
    x: int


def test_a_result_is_rebuilt_by_the_return_annotation(app: Holdfast) -> None:
    @app.task(name="double")
    def double(point: Point) -> Point:
        return Point(point.x * 2)

    job = double.enqueue(Point(2))
    assert job.value is None
    app.work(drain=True)
    assert job.result(timeout=10) == Point(4)
    assert asyncio.run(job.aresult(timeout=10)) == Point(4)
    assert job.refresh().value == Point(4)
    assert (job.state, job.attempts, job.failures) == (State.SUCCEEDED, 1, 0)
    assert job.finished_at is not None
    assert job.started_at is not None
    assert job.fence > 0


def test_a_result_of_an_unknown_task_is_plain_json(app: Holdfast) -> None:
    @app.task(name="double")
    def double(point: Point) -> Point:
        return point

    job = double.enqueue(Point(2))
    app.work(drain=True)
    app._tasks.clear()
    assert app.job(job.id).result(1) == {"x": 2}


def test_a_result_is_waited_for_while_a_worker_runs(app: Holdfast) -> None:
    asked = threading.Event()

    @app.task(name="slow")
    def slow() -> str:
        assert asked.wait(20)
        return "done"

    async def main() -> str:
        job = await slow.aenqueue()
        async with app.worker(slots=2):
            waiting = asyncio.create_task(job.aresult(timeout=20))
            await asyncio.sleep(0)
            asked.set()
            return await waiting

    assert asyncio.run(main()) == "done"


def test_a_result_is_waited_for_through_retries(app: Holdfast) -> None:
    @app.task(name="flaky", retry=RetryPolicy.fixed(0, limit=5))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return ctx.attempt

    async def main() -> int:
        async with app.worker():
            return await (await flaky.aenqueue()).aresult(timeout=20)

    assert asyncio.run(main()) == 3


def test_a_wait_that_is_too_short_says_the_state(app: Holdfast) -> None:
    job = app.task_by_name("nobody").options(delay=60).enqueue()
    for timeout in (0, 0.01):
        with pytest.raises(WaitTimedOut) as caught:
            job.result(timeout=timeout)
        assert (caught.value.job_id, caught.value.state) == (job.id, "scheduled")
    with pytest.raises(WaitTimedOut):
        asyncio.run(job.aresult(timeout=0.01))
    with pytest.raises(ConfigurationError):
        job.result(timeout=-1)


def test_a_wait_says_when_nobody_serves_the_queue(app: Holdfast) -> None:
    @app.task(name="mail", queue="mail")
    async def mail() -> None:
        return None

    job = app.task_by_name("nobody", queue="reports").enqueue()
    with pytest.raises(WaitTimedOut, match=r"No live worker serves queue 'reports'\. Start one: `holdfast work"):
        job.result(timeout=0)

    async def main() -> WaitTimedOut:
        async with app.worker(["mail"]):
            with pytest.raises(WaitTimedOut) as other:
                await job.aresult(timeout=0)
            served = await app.task_by_name("nobody", queue="mail").options(delay=60).aenqueue()
            with pytest.raises(WaitTimedOut) as caught:
                await served.aresult(timeout=0)
            assert "live workers serve mail" in other.value.why
            return caught.value

    assert asyncio.run(main()).why == ""


def test_a_dead_a_cancelled_and_a_gone_job_raise(app: Holdfast) -> None:
    @app.task(name="poison", retry=0)
    def poison() -> None:
        raise ValueError("it is bad")

    @app.task(name="giving_up")
    def giving_up() -> None:
        raise Bury("no such user")

    died, buried, cancelled = poison.enqueue(), giving_up.enqueue(), poison.options(delay=60).enqueue()
    assert cancelled.cancel() is cancelled
    assert cancelled.state == "cancelled"
    app.work(drain=True)
    with pytest.raises(JobDied, match=r"ValueError.*it is bad") as caught:
        died.result(timeout=5)
    assert (caught.value.job_id, caught.value.reason) == (died.id, "failed")
    with pytest.raises(JobDied) as caught:
        buried.result(timeout=5)
    assert caught.value.reason == "bury"
    with pytest.raises(JobCancelled):
        cancelled.result(timeout=5)
    unknown = app.task_by_name("x").bind()
    job = app.enqueue(unknown)
    gone = type(job)(app, job._record.__class__(**{**_fields(job._record), "id": "gone"}))
    with pytest.raises(ResultGone):
        gone.result(timeout=5)
    with pytest.raises(JobNotFound):
        gone.refresh()


@pytest.mark.parametrize("registered", [True, False])
def test_a_result_that_is_no_json_is_a_typed_error(app: Holdfast, registered: bool) -> None:
    @app.task(name="returns")
    def returns() -> int:
        return 1

    job = app.task_by_name("returns" if registered else "nobody's").enqueue()
    record = structs.replace(job._record, id="odd", state=State.SUCCEEDED, value=b"\xff{")
    with pytest.raises(BackendError, match="result of job odd cannot be read"):
        app._finished(record)
    deep = structs.replace(record, value=b"[" * 100_000)
    with pytest.raises(BackendError, match="cannot be read"):
        app._finished(deep)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_refresh_reads_again_and_answers_itself(app: Holdfast) -> None:
    job = app.task_by_name("x").options(delay=60).enqueue()
    app.run_now(job)
    assert job.state == "scheduled"
    assert job.refresh() is job
    assert job.state == "ready"

    async def main() -> None:
        assert (await job.acancel()).state == "cancelled"
        assert (await job.arefresh()).state == "cancelled"

    asyncio.run(main())
    with pytest.raises(StateConflict):
        app.run_now(job)


def test_a_job_shows_neither_arguments_nor_results(app: Holdfast) -> None:
    call = app.task_by_name("x").bind(pin="hunter2")
    job = app.enqueue(call)
    assert "hunter2" not in f"{call!r} {job!r} {app.jobs()!r}"
    assert job.id in repr(job)
    assert len({job, app.job(job.id)}) == 1


def test_per_call_options_reach_the_worker(app: Holdfast) -> None:
    runs: list[str] = []

    @app.task(name="failing", retry=0)
    def failing(who: str) -> None:
        runs.append(who)
        raise RuntimeError("no")

    failing.enqueue("task")
    failing.options(retry=RetryPolicy.fixed(0, limit=2)).enqueue("call")

    async def main() -> None:
        async with app.worker():
            for job in [job async for job in app.jobs()]:
                with pytest.raises(JobDied):
                    await job.aresult(timeout=20)

    asyncio.run(main())
    assert sorted(runs) == ["call", "call", "call", "task"]


def test_a_timeout_is_a_duration_as_everywhere(app: Holdfast) -> None:
    job = app.task_by_name("nobody runs it").enqueue()
    assert Job.result.__annotations__["timeout"] == Job.aresult.__annotations__["timeout"] == "Duration | None"
    with pytest.raises(WaitTimedOut) as caught:
        job.result(timeout=timedelta(milliseconds=1))
    assert caught.value.seconds == 0.001
