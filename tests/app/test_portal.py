"""Opening, closing, forking, and calls from any thread or loop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, store_thread
from holdfast.errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown


def portals() -> set[threading.Thread]:
    gc.collect()  # a neighbour's app that nobody holds is not ours to count
    for closed in list(store_thread._closings.values()):
        assert closed.acquire(timeout=60.0)
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-portal"}


def test_construction_does_no_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = portals()
    app = Holdfast()
    app.queue("mail")
    app.task(name="x")(lambda: None).bind()
    assert list(tmp_path.iterdir()) == []
    assert portals() <= before


def test_a_sync_producer_on_sqlite_needs_no_store_thread_until_something_waits(tmp_path: Path) -> None:
    before = portals()
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    task = app.task(name="x")(lambda: None)
    first = task.enqueue()
    assert app._store.is_open and portals() <= before
    assert app.job(first.id).id == first.id  # on the store thread, with the same backend
    assert len(portals() - before) == 1
    app.close()
    assert not app._store.is_open and portals() <= before


def test_a_store_that_was_opened_without_a_thread_closes_and_opens_again(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    task = app.task(name="x")(lambda: None)
    writers = sum(thread.name == "holdfast-writer" for thread in threading.enumerate())
    for _ in range(2):
        task.enqueue()
        assert sum(thread.name == "holdfast-writer" for thread in threading.enumerate()) == writers + 1
        app.close()
        assert sum(thread.name == "holdfast-writer" for thread in threading.enumerate()) == writers
    assert app.count().total == 2
    app.close()


def test_a_queue_with_a_rule_is_declared_before_its_first_job(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    app.queue("mail", limit=3)
    app.task(name="x", queue="mail")(lambda: None).enqueue()
    assert [queue.limit for queue in app.queues.list()] == [3]
    app.close()


def test_the_url_comes_from_the_argument_the_environment_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    assert Holdfast().url == "sqlite:///holdfast.db"
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    assert Holdfast().url == "memory://"
    assert Holdfast("sqlite:///a.db").url == "sqlite:///a.db"
    monkeypatch.setenv("HOLDFAST_URL", "")
    assert Holdfast().url == "sqlite:///holdfast.db"
    monkeypatch.setenv("HOLDFAST_URL", "redis://:hunter2@host/jobs")
    with pytest.raises(ConfigurationError) as caught:
        Holdfast()
    assert "hunter2" not in str(caught.value)


def test_a_repr_shows_the_url_and_the_number_of_tasks() -> None:
    app = Holdfast("memory://")
    assert repr(app) == "<Holdfast memory:// with 0 tasks>"
    assert app.safe_url == app.url


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be looked at" * 20])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with Holdfast(f"sqlite:///{path}") as app, pytest.raises(HoldfastError):
        app.task_by_name("x").enqueue()
    assert path.read_bytes() == content


def test_a_store_that_cannot_be_opened_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with Holdfast(f"sqlite:///{folder}/jobs.db") as app:
        for _ in range(2):
            with pytest.raises(HoldfastError):
                app.task_by_name("x").enqueue()
        folder.mkdir()
        assert app.task_by_name("x").enqueue().state == "ready"


def test_closing_ends_the_thread_and_a_later_call_opens_again(app: Holdfast) -> None:
    before = portals()
    job = app.task_by_name("x").enqueue()
    job.refresh()
    assert len(portals() - before) == 1
    app.close()
    app.close()
    assert portals() <= before
    assert app.job(job.id).state == "ready"
    with app as same:
        assert same is app
    assert portals() <= before


def test_opening_early_raises_what_is_wrong(app: Holdfast, tmp_path: Path) -> None:
    app.open()
    asyncio.run(app.aopen())
    bad = Holdfast(f"sqlite:///{tmp_path}/no/such/folder/jobs.db")
    with pytest.raises(HoldfastError):
        bad.open()
    with pytest.raises(HoldfastError):
        asyncio.run(bad.aopen())
    bad.close()


def test_async_with_closes_too(app: Holdfast) -> None:
    before = portals()

    async def main() -> None:
        async with app as same:
            assert same is app
            await app.task_by_name("x").aenqueue()
        await app.aclose()

    asyncio.run(main())
    assert portals() <= before


def test_an_app_nobody_holds_closes_itself(tmp_path: Path) -> None:
    before = portals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
        app.task(name="x")(lambda: None).enqueue()
        del app
        gc.collect()
    assert portals() <= before


@pytest.mark.parametrize("loop", [True, False])
def test_collecting_an_app_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, loop: bool) -> None:
    """The thread that collects may hold a lock that closing needs: as here, of `threading`."""
    before = portals()
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="x")(lambda: None).enqueue()
    if loop:
        app.counts()
    waited: list[str] = []
    collector, join = threading.current_thread(), threading.Thread.join

    def watched(thread: threading.Thread, timeout: float | None = None) -> None:
        if threading.current_thread() is collector:
            waited.append(thread.name)
            return
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", watched)
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        del app
        gc.collect()
    assert waited == []
    assert portals() <= before


def test_a_script_that_never_closes_ends_quietly(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import holdfast, asyncio\n"
        f"app = holdfast.Holdfast('sqlite:///{tmp_path}/jobs.db')\n"
        "@app.task\n"
        "def hello(name: str) -> None: ...\n"
        "print(hello.enqueue('ann').task)\n"
        "asyncio.run(hello.aenqueue('bob'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "script.hello\n", "")


def test_threads_and_loops_may_call_at_once(app: Holdfast) -> None:
    send = app.task_by_name("x")
    failures: list[BaseException] = []

    def sync_calls() -> None:
        try:
            for _ in range(20):
                send.enqueue()
        except BaseException as error:
            failures.append(error)

    def async_calls() -> None:
        async def main() -> None:
            await asyncio.gather(*(send.aenqueue() for _ in range(20)))

        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=target) for target in (sync_calls, async_calls) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert app.counts()["default"]["ready"] == 120


def test_a_cancelled_wait_leaves_the_app_usable(app: Holdfast) -> None:
    job = app.task_by_name("x").options(delay=60).enqueue()

    async def main() -> None:
        waiting = asyncio.create_task(job.aresult())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await app.ajob(job.id)).state == "scheduled"

    asyncio.run(main())


def test_closing_during_a_wait_ends_the_wait(app: Holdfast) -> None:
    app.open()
    job = app.task_by_name("x").options(delay=60).enqueue()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            job.result()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    portal = app._store._portal
    assert portal is not None
    while not asyncio.all_tasks(portal._loop):  # until the wait is under way
        thread.join(0.001)
    app.close()
    thread.join(20)
    assert [type(error) for error in ended] == [OutcomeUnknown]


def test_closing_during_an_async_wait_ends_it_too(app: Holdfast) -> None:
    job = app.task_by_name("x").options(delay=60).enqueue()

    async def main() -> None:
        waiting = asyncio.create_task(job.aresult())
        await asyncio.sleep(0)
        await app.aclose()
        with pytest.raises(OutcomeUnknown):
            await waiting

    asyncio.run(main())


def in_child(work: Any) -> str:
    """What `work` answers in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"failed: {error!r}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_its_own_and_harms_nothing(sqlite_app: Holdfast) -> None:
    send = sqlite_app.task_by_name("x")
    send.enqueue()
    inherited = sqlite_app._backend

    def child() -> str:
        job = send.enqueue()
        fresh = sqlite_app._backend is not inherited
        asyncio.run(send.aenqueue())
        sqlite_app.close()
        return f"{job.created} {fresh}"

    assert in_child(child) == "True True"
    assert in_child(child) == "True True"
    send.enqueue()
    assert sqlite_app.counts()["default"]["ready"] == 6
    assert sqlite_app._backend is inherited


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_of_a_memory_app_begins_empty(memory_app: Holdfast) -> None:
    memory_app.task_by_name("x").enqueue()

    def child() -> str:
        memory_app.task_by_name("x").enqueue()
        return str(memory_app.counts()["default"]["ready"])

    assert in_child(child) == "1"
    assert memory_app.counts()["default"]["ready"] == 1


def test_memory_has_one_store_per_app(memory_app: Holdfast) -> None:
    with Holdfast("memory://") as other:
        memory_app.task_by_name("x").enqueue()
        assert other.counts() == {}
        assert memory_app._open_backend() is memory_app._backend


def test_another_backend_of_the_same_file_is_a_new_one(sqlite_app: Holdfast) -> None:
    sqlite_app.task_by_name("x").enqueue()
    other = sqlite_app._open_backend()
    assert other is not sqlite_app._backend

    async def main() -> int:
        await other.open()
        try:
            return sum(sum(states.values()) for states in (await other.count()).values())
        finally:
            await other.close()

    assert asyncio.run(main()) == 1


def test_the_backend_may_be_asked_for_on_a_running_loop(app: Holdfast) -> None:
    async def main() -> str:
        return app._backend.scheme

    assert asyncio.run(main()) in ("memory", "sqlite")


def test_an_enqueue_does_not_fail_because_the_rules_cannot_be_declared(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session locks the tables of rules: the job is stored, and the rule is declared later."""
    monkeypatch.setattr(store_thread, "DECLARE_AGAIN_SECONDS", 0.01)
    app.queue("mail", limit=3)
    task = app.task(name="send", queue="mail")(lambda: None)
    backend = app._store.unopened
    real, tries, told = backend.declare, [], threading.Event()

    async def declare(*args: Any, **kwargs: Any) -> None:
        tries.append(args)
        if len(tries) < 4:
            raise OutcomeUnknown("declare") if len(tries) % 2 else BackendUnavailable("busy.")
        await real(*args, **kwargs)
        told.set()

    monkeypatch.setattr(backend, "declare", declare)
    job = task.enqueue()
    assert app.job(job.id) is not None and len(tries) <= 4
    assert told.wait(20)
    assert [queue.limit for queue in app.queues.list()] == [3]
    task.enqueue()
    assert len(tries) == 4, "told once, it is not told again"


def test_unknown_events_are_refused(memory_app: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="stalled"):
        memory_app.on("staled")  # type: ignore[call-overload]


def test_every_public_name_is_there_and_sorted() -> None:
    assert sorted(holdfast.__all__, key=lambda name: (not name.isupper(), name)) == holdfast.__all__
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        holdfast.nonsense  # noqa: B018
