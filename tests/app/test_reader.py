"""What an operator reads from the store through the app: workers, logs, time, prune, dump; an app with another URL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigurationError, Context, Holdfast, JobNotFound
from holdfast.testing import sandbox


def talker(app: Holdfast) -> Any:
    @app.task(name="talk")
    def talk(ctx: Context) -> None:
        ctx.log("first")
        ctx.log("second", n=2)

    return talk


def test_logs_are_read_by_job_and_by_id(app: Holdfast) -> None:
    job = talker(app).enqueue()
    assert app.logs(job) == []
    app.work(drain=True)
    lines = app.logs(job.id)
    assert [line.text.partition(" ")[0] for line in lines] == ["first", "second"]
    assert asyncio.run(app.alogs(job)) == lines
    with pytest.raises(JobNotFound):
        app.logs("nobody")


def test_workers_are_listed_while_they_work(app: Holdfast) -> None:
    assert app.workers() == []

    async def main() -> None:
        async with app.worker(["mail"], slots=3):
            [worker] = await app.aworkers()
            assert (worker.queues, worker.slots, worker.expired) == (("mail",), 3, False)

    asyncio.run(main())
    assert app.workers() == []


def test_the_stores_own_time_is_the_sandboxes_in_a_sandbox(app: Holdfast) -> None:
    assert app.now().tzinfo is not None
    with sandbox(app, start=1_000_000.0) as box:
        assert app.now().timestamp() == 1_000_000.0
        box.clock.advance(60)
        assert asyncio.run(app.anow()).timestamp() == 1_000_060.0


def test_prune_counts_first_and_removes_then(memory_app: Holdfast) -> None:
    talk = talker(memory_app)
    with sandbox(memory_app) as box:
        for _ in range(3):
            talk.enqueue()
        box.drain()
        assert memory_app.prune() == 0
        box.clock.advance(hours=2)
        assert memory_app.prune(older_than=timedelta(hours=1), dry_run=True) == 3
        assert asyncio.run(memory_app.aprune(older_than=3600, dry_run=True)) == 3
        assert memory_app.prune(older_than=3600) == 3
        assert list(memory_app.jobs()) == []
        with pytest.raises(ConfigurationError, match="older_than= must be between 600"):
            memory_app.prune(older_than=5)


def test_a_dry_run_counts_what_the_rules_of_tasks_let_go(app: Holdfast) -> None:
    @app.task(name="ping", retain_count=2, key=lambda n: str(n), on_conflict="throttle", window=3600)
    def ping(n: int) -> None: ...

    @app.task(name="fail", retry=0, retain_dead=900, retain_dead_count=2)
    def fail() -> None:
        raise ValueError

    @app.task(name="old", retry=0, retain_dead=700)
    def old() -> None:
        raise ValueError

    with sandbox(app) as box:
        for number in range(5):
            ping.enqueue(number)
            fail.enqueue()
        old.enqueue()
        box.drain()
        kept = fail.enqueue()
        box.drain()
        app.dead.revive(kept.id)
        box.clock.advance(minutes=5)
        assert app.prune(dry_run=True) == 0
        for minutes, gone in ((6, 4), (1, 1), (4, 1), (50, 3)):
            # 11 min: four letters beyond two; 12 min: the old one; 16 min: the last but the live one; then the windows
            box.clock.advance(minutes=minutes)
            assert app.prune(dry_run=True) == gone, minutes
            assert app.prune() == gone, minutes


def test_a_pause_says_who_paused(app: Holdfast) -> None:
    app.pause(queue="mail", reason="moving", by="ann")
    [queue] = app.queues.list()
    assert queue.pause is not None
    assert (queue.pause.reason, queue.pause.by) == ("moving", "ann")
    asyncio.run(app.apause(queue="mail", by="ben"))  # already paused: the first word stays
    [queue] = app.queues.list()
    assert queue.pause is not None
    assert queue.pause.by == "ann"


def test_dead_letters_are_found_by_the_beginning_of_their_id(app: Holdfast) -> None:
    for id in ("aa1", "aa2", "b1"):
        app.bury(app.task_by_name("x", id=id).enqueue())
    assert {letter.id for letter in app.dead.list(id_prefix="aa")} == {"aa1", "aa2"}
    assert [letter.id for letter in asyncio.run(app.dead.alist(id_prefix="b"))] == ["b1"]


def test_an_app_without_tasks_does_not_claim_that_a_task_is_missing(memory_app: Holdfast) -> None:
    job = memory_app.task_by_name("far").enqueue()
    without = memory_app.explain(job)
    assert not any("far" in sentence for sentence in without.reasons)
    assert memory_app.explain(job, tasks=["far"]) == without
    assert any("'far'" in sentence for sentence in memory_app.explain(job, tasks=["near"]).reasons)


def test_an_aimed_app_keeps_its_tasks_and_queues_and_can_be_put_back(memory_app: Holdfast, tmp_path: Path) -> None:
    memory_app.queue("bulk", group_limit=3, group_order="relaxed")
    talk = talker(memory_app)
    home = talk.enqueue()
    before = memory_app._aim(f"sqlite:///{tmp_path / 'other.db'}")
    assert memory_app.url.endswith("other.db")
    assert list(memory_app.jobs()) == []
    away = talk.enqueue()
    assert [queue.group_limit for queue in memory_app.queues.list() if queue.name == "bulk"] == [3]
    memory_app.close()
    memory_app._aim(*before)
    assert memory_app.url == "memory://"
    assert [job.id for job in memory_app.jobs()] == [home.id]
    assert away.id != home.id


def test_a_dump_holds_everything(memory_app: Holdfast) -> None:
    job = memory_app.task_by_name("far").enqueue()
    assert job.id in str(memory_app._dump())
    assert memory_app._dump() == asyncio.run(memory_app._adump())
