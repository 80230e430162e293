"""The sandbox: the user's own app, on memory, in time that stands still."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, RetryPolicy
from holdfast.errors import ConfigurationError
from holdfast.testing import sandbox

ran: list[str] = []


@pytest.fixture
def user_app(tmp_path: Path) -> Holdfast:
    """An app on a file that must never come to be."""
    ran.clear()
    app = Holdfast(f"sqlite:///{tmp_path}/real.db")
    app.queue("mail", group_limit=2, group_order="relaxed")

    @app.task(name="send", queue="mail", retry=RetryPolicy.fixed(60, limit=2))
    async def send(ctx: Context, to: str, subject: str = "hi") -> str:
        ran.append(to)
        if to == "flaky" and ctx.attempt == 1:
            raise RuntimeError("not yet")
        return subject

    return app


def test_the_users_app_is_swapped_and_put_back(user_app: Holdfast, tmp_path: Path) -> None:
    url = user_app.url
    with sandbox(user_app) as box:
        assert user_app.url == "memory://"
        assert box.app is user_app
        user_app.tasks["send"].enqueue("ann")
        assert user_app.counts()["mail"]["ready"] == 1
        assert user_app.queues.list()[0].group_limit == 2
    assert user_app.url == url
    assert list(tmp_path.iterdir()) == []


def test_it_is_put_back_after_an_error_too(user_app: Holdfast) -> None:
    url = user_app.url
    with pytest.raises(RuntimeError), sandbox(user_app):
        raise RuntimeError
    assert user_app.url == url


def test_what_was_enqueued_is_asserted(user_app: Holdfast) -> None:
    send = user_app.tasks["send"]
    with sandbox(user_app) as box:
        box.refute_enqueued(send)
        first = send.enqueue("ann")
        send.enqueue("bob", subject="yo")
        assert box.assert_enqueued(send, to="ann", count=1) == [first]
        box.assert_enqueued(send, count=2)
        box.assert_enqueued("send", subject="hi")  # a default counts as given
        box.assert_enqueued(send, to="bob", subject="yo")
        box.refute_enqueued(send, to="cid")
        box.refute_enqueued("other")
        assert [job.args["to"] for job in box.enqueued(send)] == ["ann", "bob"]
        assert len(box.enqueued()) == 2
        box.assert_enqueued(send.bind("bob", subject="yo"), count=1)  # a call has exactly its arguments
        box.assert_not_enqueued(send.bind("bob"))
        with pytest.raises(AssertionError) as told:
            box.assert_enqueued(send, count=3)
        assert str(told.value) == (
            "expected 3 jobs of send, found 2.\nEnqueued:\n"
            "  send(to='ann')  ready\n  send(to='bob', subject='yo')  ready"
        )
        with pytest.raises(AssertionError, match=r"at least one job of send\(to='dan'\), found 0\."):
            box.assert_enqueued(send, to="dan")
        with pytest.raises(AssertionError, match=r"expected 1 job of send\(to='cid'\), found 0\."):
            box.assert_enqueued(send.bind("cid"), count=1)
        with pytest.raises(AssertionError, match="expected no job of send"):
            box.assert_not_enqueued(send, to="ann")
        with pytest.raises(AssertionError, match="expected no job, found 2"):
            box.assert_not_enqueued()
        with pytest.raises(ConfigurationError, match="arguments already"):
            box.enqueued(send.bind("ann"), to="ann")
        with pytest.raises(ConfigurationError):
            box.assert_enqueued(lambda: None)  # type: ignore[arg-type]


def test_time_moves_only_when_told(user_app: Holdfast) -> None:
    send = user_app.tasks["send"]
    with sandbox(user_app, start=1_800_000_000.0) as box:
        later = send.options(delay=3600).enqueue("later")
        assert later.due_at.timestamp() == 1_800_003_600.0
        flaky = send.enqueue("flaky")
        assert box.drain().left == 2
        assert (flaky.refresh().state, flaky.failures) == ("scheduled", 1)
        box.clock.advance(minutes=1)
        assert box.drain().succeeded == 1
        assert flaky.result(0) == "hi"
        box.clock.advance(hours=1)
        assert box.drain().left == 0
        assert later.refresh().state == "succeeded"
    assert ran == ["flaky", "flaky", "later"]


def test_one_job_is_run_although_it_is_not_due(user_app: Holdfast) -> None:
    with sandbox(user_app) as box:
        job = user_app.tasks["send"].options(delay=60).enqueue("ann")
        assert box.run(job) is job
        assert job.value == "hi"


def test_it_works_inside_a_running_loop(user_app: Holdfast) -> None:
    send = user_app.tasks["send"]

    async def main() -> None:
        with sandbox(user_app) as box:
            job = await send.options(delay=5).aenqueue("ann")
            box.assert_enqueued(send, to="ann", count=1)
            with pytest.raises(ConfigurationError, match="adrain"):
                box.drain()
            assert (await box.adrain()).left == 1
            box.clock.advance(5)
            assert (await box.adrain()).succeeded == 1
            assert await job.aresult(0) == "hi"
            assert (await box.arun(await send.options(delay=9).aenqueue("bob"))).state == "succeeded"

    asyncio.run(main())


def test_sandboxes_nest(user_app: Holdfast) -> None:
    with sandbox(user_app) as outer:
        user_app.tasks["send"].enqueue("outer")
        with sandbox(user_app) as inner:
            assert inner.enqueued() == []
        assert len(outer.enqueued()) == 1


def test_a_sandbox_is_reached_from_the_package(user_app: Holdfast) -> None:
    import holdfast

    with holdfast.testing.sandbox(user_app) as box:
        assert box.enqueued() == []
