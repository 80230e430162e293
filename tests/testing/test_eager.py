"""app.eager(): calls run at once, in the calling thread, and what they raise comes out."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Bury, Context, Holdfast, RetryPolicy, Snooze
from holdfast.errors import ConfigurationError, TaskNotRegistered

ran: list[str] = []


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    ran.clear()
    app = Holdfast(f"sqlite:///{tmp_path}/real.db")
    app.queue("mail", group_limit=1)

    @app.task(name="send", queue="mail", group="all", retry=RetryPolicy.fixed(60, limit=2))
    def send(to: str) -> str:
        ran.append(to)
        if to == "nobody":
            raise ValueError("no such person")
        if to == "list":
            app.tasks["asend"].using(delay=60).enqueue("member")
        return threading.current_thread().name

    @app.task(name="asend")
    async def asend(to: str) -> str:
        ran.append(to)
        return threading.current_thread().name

    @app.task(name="wait")
    def wait(ctx: Context, times: int) -> int:
        if ctx.attempt <= times:
            raise Snooze(3600)
        return ctx.attempt

    @app.task(name="bury")
    def bury() -> None:
        raise Bury("never")

    @app.cron("0 0 1 1 *", name="yearly")
    @app.task(name="yearly")
    def yearly() -> None:
        ran.append("yearly")

    return app


def test_calls_run_here_and_now_and_the_store_is_not_touched(app: Holdfast, tmp_path: Path) -> None:
    here = threading.current_thread().name
    url = app.url
    with app.eager():
        for name in ("send", "asend"):
            job = app.tasks[name].enqueue("ann")
            assert (job.state, job.value, job.result(0)) == ("succeeded", here, here)
        later = app.tasks["asend"].using(delay=86400 * 400).enqueue("later")
        assert later.state == "succeeded"
        assert app.tasks["wait"].enqueue(3).value == 4
        assert app.enqueue_many(app.tasks["asend"].bind(str(n)) for n in range(3)).created == 3
        assert app.tasks["send"].enqueue("list").state == "succeeded"
    assert ran == ["ann", "ann", "later", "0", "1", "2", "list", "member"]
    assert app.url == url
    assert list(tmp_path.iterdir()) == []


def test_what_a_handler_raises_comes_out_and_nothing_of_it_runs_later(app: Holdfast) -> None:
    send = app.tasks["send"]
    with app.eager():
        with pytest.raises(ValueError, match="no such person"):
            send.enqueue("nobody")
        assert send.enqueue("ann").state == "succeeded"  # its group is free, and the failure is not tried again
        with pytest.raises(Bury, match="never"):
            app.tasks["bury"].enqueue()
        with pytest.raises(ValueError, match="no such person"):
            app.enqueue_many([send.bind("nobody"), send.bind("ben")])
        assert [job.state for job in app.jobs("queue:mail")] == ["cancelled", "cancelled", "succeeded", "cancelled"]
    assert ran == ["nobody", "ann", "nobody"]  # ben was behind in the group


def test_a_job_that_waits_for_ever_is_told(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.eager.ROUNDS_MAX", 5)
    with app.eager(), pytest.raises(ConfigurationError, match="asked 5 times to run later"):
        app.tasks["wait"].enqueue(100)


def test_async_code_runs_on_its_own_loop(app: Holdfast) -> None:
    async def main() -> None:
        with app.eager():
            jobs = await asyncio.gather(*(app.tasks["asend"].aenqueue(str(n)) for n in range(3)))
            assert {job.value for job in jobs} == {threading.current_thread().name}
            assert (await app.tasks["send"].aenqueue("ann")).state == "succeeded"
            assert (await app.aenqueue_many([app.tasks["asend"].bind("many")])).created == 1
            with pytest.raises(ValueError, match="no such person"):
                await app.tasks["send"].aenqueue("nobody")
            with pytest.raises(ConfigurationError, match="aenqueue"):
                app.tasks["send"].enqueue("ann")

    asyncio.run(main())
    assert sorted(ran) == ["0", "1", "2", "ann", "many", "nobody"]


def test_every_queue_is_served_and_an_unknown_task_is_told(app: Holdfast) -> None:
    with app.eager():
        assert app.tasks["asend"].using(queue="elsewhere").enqueue("ann").state == "succeeded"
        with pytest.raises(TaskNotRegistered, match="asend"):
            app.named("nothing").enqueue(1)
        first = app.tasks["asend"].using(id="the-same").enqueue("ben")
        assert app.tasks["asend"].using(id="the-same").enqueue("ben").id == first.id
    assert ran == ["ann", "ben"]


def test_threads_of_a_handler_and_beside_it_leave_nothing_undone(app: Holdfast) -> None:
    @app.task(name="fan", retry=0)
    def fan() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(app.tasks["asend"].enqueue, "abcd"))

    with app.eager():
        fan.enqueue()
        assert sorted(ran) == ["a", "b", "c", "d"]
        with ThreadPoolExecutor(4) as pool:
            jobs = list(pool.map(app.tasks["asend"].enqueue, "efghijkl"))
        assert {job.result(60) for job in jobs} == {job.refresh().value for job in jobs}
    assert sorted(ran) == list("abcdefghijkl")


def test_a_connection_is_ignored_and_blocks_nest(app: Holdfast) -> None:
    connection = sqlite3.connect(":memory:")
    with app.eager():
        with app.eager():
            assert app.tasks["send"].using(connection=connection).enqueue("ann").state == "succeeded"
        assert app.counts() == {}
        assert app.tasks["send"].enqueue("ben").state == "succeeded"
    assert not connection.in_transaction
    connection.close()
    assert app._eager is None
