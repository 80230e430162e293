"""Limits and rates declared by the app and overridden by operators, through both twins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import RESET, UNLIMITED, Holdfast
from holdfast.errors import ConfigurationError
from holdfast.rates import NO_RATE, Rate
from holdfast.rates import UNLIMITED as NO_LIMIT
from holdfast.records import TaskRule


def test_an_operators_word_on_a_queue_stands_beside_the_declared_one(app: Holdfast) -> None:
    app.queue("mail", limit=5, rate="100/m")
    app.queues.limit("mail", 2, rate="1/s")
    [mail] = app.queues.list()
    assert (mail.limit, mail.rate) == (5, Rate(100, 60.0))
    assert mail.override is not None
    assert (mail.override.limit, mail.override.rate) == (2, Rate(1, 1.0))
    app.queues.limit("mail", rate=RESET)
    [mail] = app.queues.list()
    assert mail.override is not None
    assert (mail.override.limit, mail.override.rate) == (2, None)
    asyncio.run(app.queues.alimit("mail", limit=RESET))
    assert app.queues.list()[0].override is None


def test_a_lifted_limit_is_none(app: Holdfast) -> None:
    app.queue("mail", limit=1, rate="1/h")
    app.queues.limit("mail", UNLIMITED, rate=UNLIMITED)
    override = app.queues.list()[0].override
    assert override is not None
    assert (override.limit, override.rate) == (NO_LIMIT, NO_RATE)

    @app.task(name="send", queue="mail")
    def send(n: int) -> int:
        return n

    app.enqueue_many(send.bind(n) for n in range(5))
    assert app.work(drain=True).succeeded == 5


def test_groups_and_tasks_are_limited_the_same_way(app: Holdfast) -> None:
    app.queue("mail", group_limit=3, group_order="relaxed")
    app.groups.limit("mail", "ann", 2, rate="5/s")
    group = app.groups.get("mail", "ann")
    assert (group.limit, group.override, group.rate) == (2, 2, Rate(5, 1.0))
    asyncio.run(app.groups.alimit("mail", "ann", rate=RESET))
    assert app.groups.get("mail", "ann").rate is None

    @app.task(name="pdf", limit=2)
    def pdf() -> None: ...

    app.tasks.limit(pdf, 7)
    asyncio.run(app.tasks.alimit("other", rate="3/h"))
    other, known = sorted(app.tasks.list(), key=lambda task: task.rule.name)
    assert known.override is not None
    assert known.override.limit == 7
    assert other.override is not None
    assert other.override.rate == Rate(3, 3600.0)
    assert list(app.tasks) == ["pdf"]
    assert app.tasks["pdf"] is pdf
    assert len(app.tasks) == 1
    assert asyncio.run(app.tasks.alist()) == app.tasks.list()


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "some"}, {"rate": "fast"}, {"limit": 1.5}, {}])
def test_a_word_that_says_nothing_or_nonsense_is_refused(memory_app: Holdfast, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        memory_app.queues.limit("mail", **wrong)
    with pytest.raises(ConfigurationError):
        memory_app.groups.limit("mail", "g", **wrong)
    with pytest.raises(ConfigurationError):
        memory_app.tasks.limit("send", **wrong)


def test_a_group_without_a_name_is_not_its_queue(memory_app: Holdfast) -> None:
    nameless: Any = None
    with pytest.raises(ConfigurationError, match="the group must be a str"):
        memory_app.groups.limit("mail", nameless, 1)
    assert memory_app.queues.list() == []


def test_a_worker_declares_its_tasks_and_the_latest_word_wins(app: Holdfast) -> None:
    @app.task(name="send", limit=3, rate="100/s", retain_count=5, aliases=["old"])
    def send() -> None: ...

    @app.task(name="plain")
    def plain() -> None: ...

    app.work(drain=True)
    rules = {task.rule.name: task.rule for task in app.tasks.list() if task.declared}
    assert rules == {
        name: TaskRule(name=name, limit=3, rate=Rate(100, 1.0), retain_count=5) for name in ("old", "send")
    }
    object.__setattr__(send, "defaults", send.defaults.changed(limit=None, rate=None, retain_count=None))
    app.work(drain=True)
    assert [task for task in app.tasks.list() if task.declared] == []


def test_a_queue_runs_no_more_than_its_limit(app: Holdfast) -> None:
    app.queue("mail", limit=2)
    running, most = 0, 0

    @app.task(name="send", queue="mail")
    async def send() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    app.enqueue_many(send.bind() for _ in range(10))
    assert app.work(drain=True, slots=10).succeeded == 10
    assert most == 2


def test_a_group_is_given_a_weight(memory_app: Holdfast) -> None:
    memory_app.groups.limit("default", "g", weight=3)
    assert memory_app.groups.get("default", "g").weight == 3
    memory_app.groups.limit("default", "g", weight=RESET)
    assert memory_app.groups.get("default", "g").weight == 1
    for wrong in (0, 101, 1.5, UNLIMITED):
        with pytest.raises(ConfigurationError, match="weight="):
            memory_app.groups.limit("default", "g", weight=wrong)  # type: ignore[arg-type]
