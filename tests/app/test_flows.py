"""Flows as users write them: chains, groups with a join, nested; found again from any job, cancelled, retried."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.moving.stage import fresh_url

from holdfast import (
    BoundCall,
    Bury,
    ConfigurationError,
    Context,
    Flow,
    Holdfast,
    JobDied,
    State,
    Task,
    WaitTimedOut,
    chain,
    group_of,
)

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]


@pytest.fixture(params=KINDS)
def flowing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else fresh_url(request.param, tmp_path)
    with Holdfast(url) as made:
        ready = threading.Event()

        @made.task(name="number", retry=0)
        def number(n: int) -> int:
            if n < 0 and not ready.is_set():
                raise Bury("not a number yet")
            return abs(n)

        @made.task(name="add", retry=0)
        def add(ctx: Context, more: int = 0) -> int:
            return int(sum(ctx.parents.values())) + more

        made.ready = ready  # type: ignore[attr-defined]
        yield made


def numbers(app: Holdfast, *values: int) -> list[BoundCall[int]]:
    task: Task[[int], int] = app.tasks["number"]
    return [task.bind(value) for value in values]


def add(app: Holdfast, more: int = 0) -> BoundCall[int]:
    task: Task[[int], int] = app.tasks["add"]
    return task.bind(more)


def test_chains_and_groups_nest(flowing: Holdfast) -> None:
    app = flowing
    part = group_of(*numbers(app, 1, 2, 3), then=add(app, 10))  # 16
    other = chain(numbers(app, 4)[0], add(app), add(app, 100))  # 104
    run = app.enqueue_flow(chain(group_of(part, other), add(app), add(app, 1000)))
    before = run.graph()
    assert (len(before.jobs), before.progress, before.capped) == (9, 0.0, False)
    app.work(drain=True)
    assert run.result(timeout=10) == 1120
    graph = run.finished(timeout=10)
    assert (graph.counts, graph.progress) == ({State.SUCCEEDED: 9}, 1.0)
    positions = {job.id: place for place, job in enumerate(graph.jobs)}
    assert all(positions[parent] < positions[job.id] for job in graph.jobs for parent in job.after)
    assert all(app.flow(job.id).graph() == graph for job in graph.jobs), "it is found from any of its jobs"
    assert graph.dot().count("->") == sum(len(job.after) for job in graph.jobs) == 8
    assert app.audit().violations == []


def test_what_failed_is_run_again_and_takes_the_rest_along(flowing: Holdfast) -> None:
    app = flowing
    run = app.enqueue_flow(group_of(*numbers(app, 5, -6), then=add(app)))
    app.work(drain=True)
    graph = run.finished(timeout=10)
    assert graph.counts == {State.SUCCEEDED: 1, State.DEAD: 2}
    with pytest.raises(JobDied):
        run.result(timeout=10)
    app.ready.set()  # type: ignore[attr-defined]
    assert run.retry_failed(by="ann") == 1, "the join went with its parent, and comes back with it"
    app.work(drain=True)
    assert run.result(timeout=10) == 11


def test_what_kept_a_batch_open_is_not_run_again(flowing: Holdfast) -> None:
    """It was cancelled to close the batch. Nobody needs it, also if an operator runs it again by hand."""
    app = flowing
    with app.batch() as batch:
        batch.enqueue_many(numbers(app, 5, -6))
    app.work(drain=True)
    assert batch.finished(timeout=10).failed == 1
    app.ready.set()  # type: ignore[attr-defined]
    run = app.flow(batch.id)
    assert run.retry_failed(by="ann") == 1
    app.work(drain=True)
    assert run.graph().counts == {State.SUCCEEDED: 3, State.CANCELLED: 1}
    [kept] = app.jobs("state:cancelled")
    app.retry(kept.id)
    app.work(drain=True)
    assert run.graph().counts == {State.SUCCEEDED: 4}


def test_a_cycle_is_shown(memory_app: Holdfast) -> None:
    """A job of a batch that waits for the batch, by way of another job."""
    app = memory_app

    @app.task(name="one")
    def one() -> None: ...

    batch = app.batch()
    batch.enqueue(one.bind())
    between = one.options(after=[batch.id]).enqueue()
    batch.enqueue(one.options(after=[between]).bind())
    batch.close()
    app.work(drain=True)
    run = app.flow(between)
    graph = run.graph()
    assert graph.counts == {State.SUCCEEDED: 1, State.SCHEDULED: 3, State.CANCELLED: 1}
    assert graph.svg().count("<rect") == len(graph.jobs) == 5
    assert run.cancel() == 3


def test_cancel_ends_what_has_not_finished(flowing: Holdfast) -> None:
    app = flowing
    calls = numbers(app, 1, 2)
    run = app.enqueue_flow(chain(group_of(*calls), add(app), add(app)))
    with pytest.raises(WaitTimedOut):
        run.finished(timeout=0.01)
    assert run.cancel(by="ann") == 4
    assert run.graph().counts == {State.CANCELLED: 4}
    assert run.cancel() == 0


def test_the_async_twins(flowing: Holdfast) -> None:
    app = flowing

    async def walk() -> None:
        run = await app.aenqueue_flow(chain(*numbers(app, 1), add(app, 1)))
        await app.awork(drain=True)
        assert await run.aresult(timeout=10) == 2
        assert (await run.afinished(timeout=10)) == (await run.agraph())
        assert await run.acancel() == await run.aretry_failed() == 0
        assert (await app.amap(app.tasks["total"], range(10), chunk=4)).created == 3

    @app.task(name="total")
    def total(rows: list[int]) -> int:
        return sum(rows)

    asyncio.run(walk())
    assert app.map(total, (n for n in range(25)), chunk=10).created == 3
    app.work(drain=True)
    assert {job.value for job in app.jobs(task="total")} == {6, 22, 17, 45, 145, 110}


def test_what_is_refused(flowing: Holdfast) -> None:
    app = flowing
    [one, two] = numbers(app, 1, 2)
    wrong: list[Any] = [
        lambda: chain(),
        lambda: group_of(),
        lambda: chain(one, "two"),  # type: ignore[call-overload]
        lambda: chain(one, two, one),
        lambda: group_of(one, two).last,
        lambda: app.flow(app.enqueue(one)).result(),
        lambda: app.map(app.tasks["number"], [1], chunk=0),
    ]
    for make in wrong:
        with pytest.raises(ConfigurationError):
            make()


def test_two_thousand_calls_are_stored_in_steps(flowing: Holdfast) -> None:
    app = flowing
    flow: Flow[int] = group_of(*numbers(app, *range(2000)), then=add(app))
    run = app.enqueue_flow(flow)
    app.work(drain=True, slots=50)
    assert run.result(timeout=60) == sum(range(2000))
