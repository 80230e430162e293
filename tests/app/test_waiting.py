"""One poll for all waiters, and following a job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast import Context, Holdfast, State
from holdfast.errors import BackendUnavailable, JobNotFound, ResultGone, WaitTimedOut
from holdfast.records import JobRecord, LogLine
from holdfast.results import Step, new_lines


class Counted:
    """The looks at the store, and what they asked for."""

    def __init__(self, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.fault: Exception | None = None
        self.looked = threading.Event()
        backend = app._backend
        real = backend.ended

        async def ended(ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
            self.asked.append(len(ids))
            if len(ids) == 1000:
                self.looked.set()
            if self.fault is not None:
                raise self.fault
            return await real(ids)

        monkeypatch.setattr(backend, "ended", ended)


def test_a_thousand_waiting_callers_are_one_look(memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @memory_app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    counted = Counted(memory_app, monkeypatch)

    async def main() -> list[int]:
        jobs = [await double.aenqueue(n) for n in range(1200)]
        waits = [asyncio.ensure_future(job.aresult(timeout=60)) for job in jobs]
        assert await asyncio.to_thread(counted.looked.wait, 20)  # a thousand in one call, the rest in the next
        async with memory_app.worker(slots=100):
            return await asyncio.gather(*waits)

    assert asyncio.run(main()) == [2 * n for n in range(1200)]
    assert max(counted.asked) == 1000
    assert len(counted.asked) < 600


def test_a_wait_of_no_time_looks_once(memory_app: Holdfast) -> None:
    done, late = memory_app.task_by_name("x").enqueue(), memory_app.task_by_name("x").options(delay=60).enqueue()
    memory_app.cancel(done)
    with pytest.raises(WaitTimedOut) as caught:
        late.result(timeout=0)
    assert caught.value.state == "scheduled"
    memory_app.retry(done)
    memory_app.bury(done, "no")
    with pytest.raises(Exception, match="is dead"):
        done.result(timeout=0)


def test_an_error_while_polling_reaches_all_waiters_and_the_next_wait_polls_again(
    memory_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = memory_app.task_by_name("x").options(delay=60).enqueue()
    counted = Counted(memory_app, monkeypatch)
    counted.fault = BackendUnavailable("away")

    async def main() -> Sequence[Any]:
        return await asyncio.gather(job.aresult(), job.aresult(timeout=5), return_exceptions=True)

    assert [type(end) for end in asyncio.run(main())] == [BackendUnavailable] * 2
    counted.fault = None
    with pytest.raises(WaitTimedOut):
        job.result(timeout=0)


def test_a_job_that_is_gone_says_so_and_a_cancelled_wait_leaves_nothing(memory_app: Holdfast) -> None:
    job = memory_app.task_by_name("x").options(delay=60).enqueue()

    async def main() -> None:
        wait = asyncio.ensure_future(job.aresult())
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(main())
    job._record = JobRecord(id="gone", seq=0, task="x", queue="default", state=State.READY, args=b"{}")
    with pytest.raises(ResultGone):
        job.result()


def test_a_job_is_followed_to_its_end(memory_app: Holdfast) -> None:
    go = threading.Event()

    @memory_app.task(name="render", retry=0)
    def render(ctx: Context) -> str:
        ctx.log("begun")
        ctx.progress(0.5, "half")
        go.wait(20)
        ctx.log("done")
        return "x"

    job = render.enqueue()

    async def main() -> list[Step]:
        steps = []
        async with memory_app.worker(slots=2):
            async for step in memory_app.afollow(job):
                steps.append(step)
                if step.kind == "progress":
                    go.set()
        return steps

    steps = asyncio.run(main())
    told = [(step.kind, step.text, step.fraction) for step in steps if step.kind != "state"]
    assert told == [("log", "begun", None), ("progress", "half", 0.5), ("log", "done", None)]
    assert (steps[-1].kind, steps[-1].state) == ("state", State.SUCCEEDED)
    assert steps[0].state in (State.READY, State.RUNNING)
    assert [step.state for step in memory_app.follow(job.id)][-1] is State.SUCCEEDED
    with pytest.raises(JobNotFound):
        list(memory_app.follow("nobody"))


def test_lines_that_fell_off_the_beginning_are_not_told_twice() -> None:
    a, b, c, d = (LogLine(at, "same") for at in (1.0, 1.0, 2.0, 3.0))
    assert new_lines([], [a, b]) == [a, b]
    assert new_lines([a, b, c], [b, c, d]) == [d]
    assert new_lines([a, b], [c, d]) == [c, d]
    assert new_lines([a, b], [a, b]) == []
