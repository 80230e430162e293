"""The Flask extension: configured by the factory, handlers in the application context, misuse named."""

from __future__ import annotations

from pathlib import Path

import flask
import pytest

from holdfast import ConfigurationError, StartupFailed, State
from holdfast.flask import Holdfast
from holdfast.testing import sandbox


def made(tmp_path: Path, name: str = "jobs") -> flask.Flask:
    app = flask.Flask("shop")
    app.config.update(HOLDFAST_URL=f"sqlite:///{tmp_path}/{name}.db", GREETING=f"hello from {name}")
    return app


def test_handlers_of_both_kinds_run_in_the_application_context(tmp_path: Path) -> None:
    jobs = Holdfast()
    torn_down: list[str] = []

    @jobs.task(name="sync")
    def greet(to: str) -> str:
        flask.g.to = to
        return f"{flask.current_app.config['GREETING']}, {flask.g.to}"

    @jobs.task(name="async")
    async def agreet(to: str) -> str:
        flask.g.to = to
        return f"{flask.current_app.config['GREETING']}, {flask.g.to}"

    app = made(tmp_path)
    app.teardown_appcontext(lambda error: torn_down.append(flask.g.get("to", "none")))
    jobs.init_app(app)
    assert app.extensions["holdfast"] is jobs
    assert jobs.url.endswith("/jobs.db")
    with jobs:
        found = [greet.enqueue("ann"), agreet.enqueue("ben")]
        jobs.work(drain=True)
        assert [job.refresh().value for job in found] == ["hello from jobs, ann", "hello from jobs, ben"]
    assert sorted(torn_down) == ["ann", "ben"]
    assert not flask.has_app_context()


def test_a_factory_may_be_called_for_each_test(tmp_path: Path) -> None:
    jobs = Holdfast(made(tmp_path, "first"))

    @jobs.task(name="greet")
    def greet() -> str:
        return str(flask.current_app.config["GREETING"])

    jobs.init_app(made(tmp_path, "first"))  # the same store: nothing to configure
    with sandbox(jobs) as box:
        assert box.run(greet.enqueue()).value == "hello from first"
    greet.enqueue()
    with pytest.raises(ConfigurationError, match="already uses"):
        jobs.init_app(made(tmp_path, "second"))
    jobs.close()
    jobs.init_app(made(tmp_path, "second"))
    with sandbox(jobs) as box:
        assert box.run(greet.enqueue()).value == "hello from second"


def test_a_worker_without_a_flask_app_takes_no_job(tmp_path: Path) -> None:
    with Holdfast(url=f"sqlite:///{tmp_path}/jobs.db") as jobs:

        @jobs.task(name="work", retry=0)
        def work() -> None: ...

        job = work.enqueue()
        with pytest.raises(StartupFailed, match="belong to no Flask app yet"):
            jobs.work(drain=True)
        assert (job.refresh().state, job.attempts) == (State.READY, 0)
