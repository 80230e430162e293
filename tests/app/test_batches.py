"""Batches as users write them: open and closed, nested, with callbacks that are fired once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.moving.stage import fresh_url

from holdfast import BoundCall, Bury, ConfigurationError, Context, Holdfast, JobNotFound, State, WaitTimedOut
from holdfast.errors import StateConflict
from holdfast.records import JobRecord

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]


class Stage:
    """An app with tasks, and the calls its callbacks got."""

    def __init__(self, app: Holdfast) -> None:
        self.app, self.fired = app, list[tuple[str, dict[str, int]]]()

        @app.task(name="member", retry=0)
        def member(ctx: Context, n: int = 0) -> int:
            if n < 0:
                raise Bury("no")
            if n and ctx.batch is not None:
                ctx.enqueue(ctx.batch.add(member.bind(n - 1)))
            return n

        @app.task(name="tell")
        def tell(ctx: Context, which: str) -> None:
            assert ctx.batch is not None
            counts = {state.value: count for state, count in ctx.batch.status().counts.items()}
            self.fired.append((which, counts))

        self.member, self.tell = member, tell

    @property
    def callbacks(self) -> dict[str, Any]:
        return {f"on_{which}": self.tell.bind(which) for which in ("success", "failure", "finish")}

    def members(self, *numbers: int) -> list[BoundCall[int]]:
        return [self.member.bind(n) for n in numbers]

    @property
    def told(self) -> list[str]:
        return sorted(which for which, _ in self.fired)


@pytest.fixture(params=KINDS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    url = "memory://" if request.param == "memory" else fresh_url(request.param, tmp_path)
    with Holdfast(url) as made:
        yield Stage(made)


@pytest.fixture
def stage(app: Holdfast) -> Stage:
    return Stage(app)


def test_an_open_batch_finishes_when_it_is_closed_and_its_jobs_have(anywhere: Stage) -> None:
    app = anywhere.app
    with app.batch(**anywhere.callbacks, name="import") as batch:
        job = batch.enqueue(anywhere.member.bind(2))  # it adds another, which adds another
        batch.enqueue_many(anywhere.members(0, 0))
        app.work(drain=True)
        status = batch.status()
        assert (status.open, status.finished, status.total, status.progress) == (True, False, 5, 1.0)
        assert anywhere.fired == []
    app.work(drain=True)
    status = app.find_batch(batch.id).finished(timeout=10)
    assert (status.name, status.open, status.finished, status.failed) == ("import", False, True, 0)
    assert dict(status.counts) == {State.SUCCEEDED: 5}
    assert anywhere.told == ["finish", "success"]
    assert {counts["succeeded"] for _, counts in anywhere.fired} == {5}
    assert job.refresh().state is State.SUCCEEDED
    with pytest.raises(StateConflict, match="batch has finished"):
        batch.enqueue(anywhere.member.bind(0))
    assert not app.audit().violations


def test_a_closed_batch_with_a_failure_says_so(anywhere: Stage) -> None:
    app = anywhere.app
    batch = app.enqueue_batch(anywhere.members(0, -1, 0), **anywhere.callbacks)
    assert (batch.status().open, batch.status().total) == (False, 3)
    app.work(drain=True)
    status = batch.finished(timeout=10)
    assert (dict(status.counts), status.failed) == ({State.SUCCEEDED: 2, State.DEAD: 1}, 1)
    assert anywhere.told == ["failure", "finish"]
    app.retry(batch.id)
    app.work(drain=True)
    assert anywhere.told == ["failure", "finish"]  # a callback is one job, whatever runs again


def test_a_batch_inside_another_is_one_of_its_jobs(stage: Stage) -> None:
    app = stage.app
    with app.batch(on_finish=stage.tell.bind("outer")) as outer:
        with app.batch(on_finish=stage.tell.bind("inner"), batch=outer) as inner:
            inner.enqueue(stage.member.bind(0))
        app.enqueue_batch(stage.members(0, 0), batch=outer)
    app.work(drain=True)
    assert sorted(stage.fired) == [("inner", {"succeeded": 1}), ("outer", {"succeeded": 2})]
    assert inner.status().finished and outer.status().finished


def test_cancelling_a_batch_cancels_what_is_left_of_it(stage: Stage) -> None:
    app = stage.app
    with app.batch(**stage.callbacks) as outer:
        outer.enqueue(stage.member.options(delay=60).bind(0))
        inner = app.batch(batch=outer)
        inner.enqueue_many([stage.member.options(delay=60).bind(0)])
        assert outer.cancel(by="ann") == 2
    app.work(drain=True)
    assert stage.told == ["failure", "finish"]
    assert (inner.status().failed, outer.status().counts) == (1, {State.CANCELLED: 1, State.SUCCEEDED: 1})


def test_what_is_added_while_a_batch_is_cancelled_is_cancelled_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, batch = stage.app, stage.app.batch(**stage.callbacks)
    first = batch.enqueue(stage.member.options(delay=60).bind(0))
    late, backend = batch.add(stage.member.options(delay=60).bind(0)), app._store.open()
    cancel = backend.cancel

    async def slowly(job_id: str, now: float | None = None, **about: Any) -> JobRecord:
        if job_id == first.id:
            await backend.enqueue([late.new])
        return await cancel(job_id, now, **about)

    monkeypatch.setattr(backend, "cancel", slowly)
    assert batch.cancel() == 2
    assert batch.status().open is False
    assert batch.status().counts == {State.CANCELLED: 2}


def test_an_error_inside_the_block_cancels_the_batch(stage: Stage) -> None:
    def broken() -> None:
        with stage.app.batch(on_failure=stage.tell.bind("failure")) as batch:
            batch.enqueue(stage.member.options(delay=60).bind(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    unused = stage.app.batch()
    with pytest.raises(ZeroDivisionError), unused:
        raise ZeroDivisionError
    stage.app.work(drain=True)
    assert stage.told == ["failure"]
    with pytest.raises(JobNotFound):
        unused.status()


def test_a_batch_without_jobs_has_succeeded(stage: Stage) -> None:
    with stage.app.batch(on_success=stage.tell.bind("success"), on_failure=stage.tell.bind("failure")):
        pass
    stage.app.enqueue_batch([], on_finish=stage.tell.bind("finish"))
    stage.app.work(drain=True)
    assert stage.told == ["finish", "success"]


def test_a_large_batch_is_stored_in_steps(stage: Stage) -> None:
    batch = stage.app.enqueue_batch((stage.member.bind(0) for _ in range(1001)), name="large")
    assert batch.status().total == 1001
    assert batch.status().open is False
    assert batch.cancel() == 1001


def test_async_code_uses_the_twins(stage: Stage) -> None:
    async def main() -> None:
        app = stage.app
        async with app.batch(**stage.callbacks) as batch:
            await batch.aenqueue(stage.member.bind(0))
            await batch.aenqueue_many(stage.members(0, 0))
        other = await app.aenqueue_batch(stage.members(0))
        with pytest.raises(WaitTimedOut):
            await batch.afinished(timeout=0.01)
        await app.awork(drain=True)
        assert (await batch.afinished(timeout=10)).total == 3
        assert (await other.astatus()).finished
        assert await other.acancel() == 0

    asyncio.run(main())
    assert stage.told == ["finish", "success"]


def test_an_eager_app_runs_batches_through() -> None:
    stage = Stage(Holdfast("memory://"))
    with stage.app.eager(), stage.app.batch(**stage.callbacks) as batch:
        batch.enqueue(stage.member.bind(1))
    assert stage.told == ["finish", "success"]


def test_an_eager_app_runs_the_callbacks_of_a_cancelled_batch() -> None:
    stage = Stage(Holdfast("memory://"))
    with stage.app.eager():
        batch = stage.app.batch(**stage.callbacks)
        batch.enqueue(stage.member.bind(0))
        assert batch.cancel() == 0
    assert stage.told == ["finish", "success"]


def test_what_is_no_callback_or_member_is_refused(stage: Stage) -> None:
    app, call = stage.app, stage.tell.bind("x")
    with pytest.raises(ConfigurationError, match="on_success= takes a bound call"):
        app.batch(on_success=stage.tell)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="leave out connection= and after="):
        app.batch(on_finish=stage.tell.options(after=["a"]).bind("x"))
    with pytest.raises(ConfigurationError, match="once for each callback"):
        app.batch(on_finish=call, on_success=call)
    with pytest.raises(ConfigurationError, match="batch= takes a batch"):
        app.batch(batch="b")  # type: ignore[arg-type]
    batch = app.batch()
    with pytest.raises(ConfigurationError, match="already in a batch"):
        batch.enqueue(batch.add(call))
    with pytest.raises(ConfigurationError, match="cannot wait for the batch"):
        batch.enqueue(stage.tell.options(after=[batch.id]).bind("x"))
    with pytest.raises(ConfigurationError, match="'replace', 'debounce' or 'keep_last'"):
        batch.enqueue(stage.tell.options(key="k", on_conflict="replace").bind("x"))
    with pytest.raises(JobNotFound):
        app.find_batch("nobody").close()
    assert list(app.jobs()) == []
