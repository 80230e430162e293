"""Startup, shutdown and resources of what runs handlers, and an app that is configured after it was made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigurationError, Context, Holdfast, Resources, StartupFailed, State
from holdfast.testing.sandbox import sandbox


class Pool:
    def __init__(self) -> None:
        self.closed = False


def test_startup_fills_resources_and_shutdown_runs_in_reverse(memory_app: Holdfast) -> None:
    app, seen = memory_app, []

    @app.on_startup
    def open_pool(resources: Resources) -> None:
        resources["db"] = Pool()
        seen.append("open")

    @app.on_startup
    async def warm_up(resources: Resources) -> None:
        resources["cache"] = {"warm": resources.of(Pool).closed}

    @app.on_shutdown
    def close_pool(resources: Resources) -> None:
        resources["db"].closed = True
        seen.append("close")

    @app.on_shutdown
    async def stop_first(resources: Resources) -> None:
        seen.append("first")
        raise RuntimeError("must not keep the others from closing")

    @app.task(name="sync")
    def use(ctx: Context) -> bool:
        return ctx.resources.of(Pool, "db").closed

    @app.task(name="async")
    async def ause(ctx: Context) -> Any:
        return ctx.resources["cache"]

    jobs = [use.enqueue(), ause.enqueue()]
    app.work(drain=True)
    assert [job.refresh().value for job in jobs] == [False, {"warm": False}]
    assert seen == ["open", "first", "close"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failing_startup_takes_no_job(memory_app: Holdfast, is_async: bool) -> None:
    app, stopped = memory_app, []

    def connect(resources: Resources) -> None:
        raise ConnectionError("cannot reach postgresql://me:secret@host/db")

    async def aconnect(resources: Resources) -> None:
        raise ConnectionError("refused")

    app.on_startup(aconnect if is_async else connect)
    app.on_shutdown(lambda resources: stopped.append(1))

    @app.task(name="work", retry=0)
    def work() -> None: ...

    job = work.enqueue()
    with pytest.raises(StartupFailed, match="connect failed: ConnectionError") as told:
        app.work(drain=True)
    assert "secret" not in str(told.value)

    async def in_background() -> None:
        async with app.worker():
            raise AssertionError("it must not start")

    with pytest.raises(StartupFailed):
        asyncio.run(in_background())
    assert (job.refresh().state, job.attempts, stopped) == (State.READY, 0, [])


def test_a_resource_that_is_not_there_is_named() -> None:
    resources = Resources(db=Pool(), replica=Pool())
    assert resources.get("cache") is None and "cache" not in resources
    with pytest.raises(ConfigurationError, match=r"no resource 'cache'; there are db, replica"):
        resources["cache"]
    with pytest.raises(ConfigurationError, match="2 resources are a Pool"):
        resources.of(Pool)
    with pytest.raises(ConfigurationError, match="no resource 'db' is a Path"):
        resources.of(Path, "db")


# ------------------------------------------------------------------------------------------------------------ configure


def test_an_app_is_configured_after_its_tasks_are_defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/environment.db")
    app = Holdfast()
    app.queue("mail", limit=3)

    @app.task(name="work", queue="mail")
    def work() -> int:
        return 1

    assert app.url.endswith("/environment.db")
    app.configure()
    assert app.url.endswith("/environment.db")
    app.configure(url=f"sqlite:///{tmp_path}/chosen.db", args_bytes_max=50, imports=["json"])
    with app:
        job = work.enqueue()
        assert [rule.name for rule in app._queue_rules()] == ["mail"]
        with pytest.raises(ConfigurationError, match=r"already uses sqlite:.*chosen\.db.*app\.close\(\) first"):
            app.configure(url="memory://")
        app.work(drain=True)
        assert job.refresh().value == 1
    assert (app.args_bytes_max, app.imports) == (50, ("json",))
    assert (tmp_path / "chosen.db").exists() and not (tmp_path / "environment.db").exists()


def test_a_closed_app_may_be_pointed_at_another_store_for_a_test(sqlite_app: Holdfast, tmp_path: Path) -> None:
    @sqlite_app.task(name="work")
    def work() -> None: ...

    work.enqueue()
    before = sqlite_app.url
    sqlite_app.close()
    sqlite_app.configure(url=f"sqlite:///{tmp_path}/test.db")
    assert sqlite_app.counts() == {}
    sqlite_app.close()
    sqlite_app.configure(url=before)
    assert sqlite_app.counts()["default"]["ready"] == 1


def test_a_worker_uses_the_store_too_and_a_sandbox_has_its_own(sqlite_app: Holdfast) -> None:
    sqlite_app.worker(queues="mail")
    sqlite_app.work("mail", drain=True)
    with pytest.raises(ConfigurationError, match="already uses"):
        sqlite_app.configure(url="memory://")
    with sandbox(sqlite_app), pytest.raises(ConfigurationError, match="in a sandbox"):
        sqlite_app.configure(url="memory://")


def test_a_bad_setting_changes_nothing(memory_app: Holdfast) -> None:
    settings: list[dict[str, Any]] = [{"url": "nowhere"}, {"args_bytes_max": 0, "url": "sqlite:///x.db"}]
    for setting in settings:
        with pytest.raises(ConfigurationError):
            memory_app.configure(**setting)
    assert memory_app.url == "memory://"
