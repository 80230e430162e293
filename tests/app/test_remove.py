"""remove=True: a job is gone in the step of its success, and what that gives up."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, JobNotFound, ResultGone
from holdfast.errors import ConfigurationError
from holdfast.options import TaskOptions
from holdfast.testing import sandbox


def test_a_job_goes_with_its_success_and_nothing_remembers_it() -> None:
    app, seen = Holdfast("memory://"), list[int]()

    @app.task(name="ping", remove=True)
    def ping(n: int) -> int:
        seen.append(n)
        return n

    with sandbox(app) as box:
        call = ping.bind(1)
        job = app.enqueue(call)
        assert app.job(job.id).state == "ready"
        box.drain()
        with pytest.raises(ResultGone):
            job.result(timeout=1)
        with pytest.raises(JobNotFound):
            app.job(job.id)
        assert app.enqueue(call).created, "the same bound call makes a second job"
        box.drain()
        assert seen == [1, 1]
        assert not app.audit().violations


def test_failures_are_kept_and_one_call_decides_for_itself() -> None:
    app = Holdfast("memory://")

    @app.task(name="fails", remove=True, retry=0)
    def fails() -> None:
        raise ValueError("no")

    @app.task(name="plain")
    def plain() -> int:
        return 7

    with sandbox(app) as box:
        dead, kept, gone = fails.enqueue(), plain.enqueue(), plain.options(remove=True).enqueue()
        box.drain()
        assert (app.job(dead.id).state, kept.result()) == ("dead", 7)
        with pytest.raises(JobNotFound):
            app.job(gone.id)


def test_a_job_of_a_flow_is_kept_for_those_that_wait_for_it() -> None:
    app, seen = Holdfast("memory://"), list[object]()

    @app.task(name="first", remove=True)
    def first() -> int:
        return 7

    @app.task(name="second", remove=True)
    def second() -> None:
        seen.append("second")

    with sandbox(app) as box:
        parent = first.enqueue()
        child = second.options(after=[parent]).enqueue()
        box.drain()
        assert (parent.result(), app.job(child.id).state, seen) == (7, "succeeded", ["second"])


def test_jobs_of_a_batch_handler_go_one_by_one() -> None:
    app, seen = Holdfast("memory://"), list[int]()

    @app.task(name="many", remove=True, batch=10)
    def many(calls: list) -> None:  # type: ignore[type-arg]
        seen.extend(call.args["n"] for call in calls)

    with sandbox(app) as box:
        for n in range(3):
            app.task_by_name("many").enqueue(n=n)
        box.drain()
        assert sorted(seen) == [0, 1, 2] and list(app.jobs()) == []


def test_what_it_excludes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="window="):
        TaskOptions.make(remove=True, key="k", on_conflict="throttle", window=60)
    with pytest.raises(ConfigurationError, match="remove="):
        TaskOptions.make(remove="yes")
