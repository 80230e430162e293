"""A catch-all: a task that gets the jobs of tasks that the app does not know, and obeys what any task obeys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.test_worker_ahead import Nobody, lease
from tests.worker.test_worker_unknown import until
from tests.worker.worker_bench import WorkerApp

from holdfast import Context, Holdfast, RetryPolicy, TaskRouter
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.errors import ConfigurationError
from holdfast.inspection import explain
from holdfast.inspection.coverage import AppFacts, Service, judge_service
from holdfast.records import NewJob
from holdfast.testing import sandbox
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.processes.pool import Pool
from holdfast.worker.processes.runner_endpoint import hello
from holdfast.worker.processes.runner_process import RunnerProcess, Stage
from holdfast.worker.processes.spawner import Plan
from holdfast.worker_status import read


def test_it_gets_the_name_and_the_arguments_and_known_tasks_keep_their_own() -> None:
    app, seen = Holdfast("memory://"), list[Any]()

    @app.task(name="known", aliases=["former"])
    def known(n: int) -> None:
        seen.append(n)

    @app.task(name="rest", catch_all=True)
    def rest(ctx: Context, task: str, arguments: dict[str, Any]) -> str:
        seen.append((ctx.id, task, arguments))
        return task

    with sandbox(app) as box:
        app.task_by_name("former").enqueue(n=1)
        gone = app.task_by_name("shop.gone").enqueue(to="ann", n=[1])
        placed = app.task_by_name("other").enqueue(1, 2, x=3)
        own = rest.enqueue("by hand", {"a": 1})
        box.drain()
        expected = [
            1,
            (gone.id, "shop.gone", {"to": "ann", "n": [1]}),
            (placed.id, "other", {"*": [1, 2], "x": 3}),
            (own.id, "by hand", {"a": 1}),
        ]
        assert sorted(map(repr, seen)) == sorted(map(repr, expected))  # sync handlers run in threads, in any order
        assert (gone.result(), app.job(gone.id).task) == ("shop.gone", "shop.gone")
        assert app.find_task("shop.gone") is None, "producers and the command line do not take it for a task"


def test_it_retries_times_out_and_dies_as_any_task() -> None:
    app, tries = Holdfast("memory://"), list[str]()

    @app.task(name="rest", catch_all=True, retry=RetryPolicy.fixed(0, limit=1), timeout=0.05)
    async def rest(task: str, arguments: dict[str, Any]) -> None:
        tries.append(task)
        if task == "slow":
            await asyncio.Event().wait()
        raise ValueError(task)

    with sandbox(app) as box:
        fails, slow = app.task_by_name("fails").enqueue(), app.task_by_name("slow").enqueue()
        once = app.task_by_name("once").options(retry=0).enqueue()
        box.drain()
        ends = [(job.reason, job.failures) for job in map(app.job, (fails.id, slow.id, once.id))]
        assert ends == [("failed", 2), ("timeout", 2), ("failed", 1)]
        assert sorted(tries) == ["fails", "fails", "once", "slow", "slow"]
        assert sorted(one.task for one in app.dead.list()) == ["fails", "once", "slow"]


async def test_a_worker_with_one_says_that_it_takes_anything() -> None:
    store = MemoryBackend()
    app = WorkerApp(lambda: store)

    @app.task(name="rest", catch_all=True)
    async def rest(task: str, arguments: dict[str, Any]) -> None: ...

    async def published() -> bool:
        return any((view := read(one.portrait)) is not None and view.catch_all for one in await store.workers())

    async with app.worker(slots=2, poll_every=0.01, renew_every=0.05, lease=30.0):
        await until(published, store)
        [mine] = await store.workers()
        await store.enqueue([NewJob(id="later", task="nobody", delay=600.0)])
        told = await explain(store, "later")
        assert not any("knows" in one or "Deploy" in one for one in told.sentences)
        view = read(mine.portrait)
        assert view is not None and view.unknown == ()
    await app.close()


def test_the_doctor_knows_that_the_app_takes_them() -> None:
    service = Service(waiting={"gone": 3}, looked_at=3)
    [plain] = [one for one in judge_service(service, AppFacts(name="a:b", tasks={"t": "q"})) if one.about == "unknown"]
    caught = AppFacts(name="a:b", tasks={"rest": "q"}, catch_all="rest")
    [taken] = [one for one in judge_service(service, caught) if one.about == "unknown"]
    assert (plain.verdict, taken.verdict) == ("wrong", "fine") and "'rest' gets" in taken.text


async def test_the_keeper_knows_its_timeout_and_policy_for_any_name() -> None:
    app = Holdfast("memory://")

    @app.task(name="known", timeout=5.0)
    def known() -> None: ...

    @app.task(name="rest", catch_all=True, timeout=7.0, retry=0)
    def rest(task: str, arguments: dict[str, Any]) -> None: ...

    pool = Pool(Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    runner = RunnerProcess(Nobody(), 1, 4, dedicated=False)
    runner.handed_over()
    runner.hello, runner.stage = hello(app, "memory://", 1, 10, "option"), Stage.READY
    try:
        pool.on_ready(runner)
        assert pool.knows("anything") and pool.catches_all and set(pool.task_names()) == {"known", "rest"}
        given = [lease(1, "known"), lease(2, "anything"), lease(3, "rest")]
        runner.give(given)
        pool.monitor.expect(runner, given)
        assert [runner.jobs[one.token].timeout for one in given] == [5.0, 7.0, 7.0]
    finally:
        runner.close()


@pytest.mark.parametrize(
    "options", [{"limit": 1}, {"rate": "1/s"}, {"batch": 2}, {"isolation": "process"}, {"catch_all": "yes"}]
)
def test_what_goes_by_the_name_of_a_task_is_refused(options: dict[str, Any]) -> None:
    app = Holdfast("memory://")
    with pytest.raises(ConfigurationError, match="catch_all="):
        app.task(**{"name": "rest", "catch_all": True, **options})


def test_an_app_has_one_and_it_takes_two_parameters() -> None:
    app, others = Holdfast("memory://"), TaskRouter()

    @app.task(name="rest", catch_all=True)
    def rest(task: str, arguments: dict[str, Any]) -> None: ...

    @others.task(name="more", catch_all=True)
    def more(task: str, arguments: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="'rest' is the catch-all already"):
        app.include(others)
    with pytest.raises(ConfigurationError, match="two parameters"):

        @others.task(name="wrong", catch_all=True)
        def wrong(task: str) -> None: ...
