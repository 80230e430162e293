"""What people give by mistake is refused in a sentence of ours, before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, InvalidArguments, RetryPolicy

WRONG: Any = 3  # of no type that is asked for

TOO_MANY = 10**30


def plain(app: Holdfast) -> Any:
    @app.task(name="plain")
    def run(a: Any = None) -> None: ...

    return run


def test_a_time_no_calendar_has_is_refused_and_not_stored(app: Holdfast) -> None:
    """It was stored, and then nobody could read the job, nor list the others."""
    task = plain(app)
    west = timezone(timedelta(hours=-12))
    for at in (datetime(9999, 12, 31, 23, 59, tzinfo=west), datetime.max.replace(tzinfo=UTC)):
        with pytest.raises(ConfigurationError, match="beyond the year 2999"):
            task.options(at=at)
    assert list(app.jobs()) == []
    assert task.options(at=datetime(2999, 12, 31, tzinfo=west)).enqueue().due_at.year == 2999
    assert task.options(at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))).enqueue().state == "ready"


@pytest.mark.parametrize(
    "ask",
    [
        lambda app: app.dead.list(limit=TOO_MANY),
        lambda app: app.groups.list(limit=TOO_MANY),
        lambda app: app.groups.limit("q", "g", TOO_MANY),
        lambda app: app.groups.limit("q", "g", "many"),
        lambda app: app.groups.limit("q", "g", True),
        lambda app: app.queue("q", group_limit=TOO_MANY, group_order="relaxed"),
    ],
)
def test_numbers_no_store_can_hold_are_refused_by_us_and_not_by_a_driver(
    app: Holdfast, ask: Callable[[Holdfast], Any]
) -> None:
    with pytest.raises(ConfigurationError, match="must be an int"):
        ask(app)


@pytest.mark.parametrize(
    "ask",
    [
        lambda app: app.task(name="x", aliases=3)(lambda: None),
        lambda app: Holdfast("memory://", imports=WRONG),
        lambda app: app.jobs(state=3),
        lambda app: app.worker(queues=3),
        lambda app: RetryPolicy(on=WRONG),
        lambda app: RetryPolicy(delays=WRONG),
    ],
)
def test_one_thing_where_several_are_wanted_is_a_configuration_error(
    memory_app: Holdfast, ask: Callable[[Holdfast], Any]
) -> None:
    with pytest.raises(ConfigurationError, match="takes a list, not int"):
        ask(memory_app)


@pytest.mark.parametrize("option", ["retry", "max_starts", "priority"])
def test_an_int_of_a_subclass_is_stored_as_what_it_is(app: Holdfast, option: str) -> None:
    class Number(int): ...

    chosen: Any = {option: Number(3)}
    job = plain(app).options(**chosen).enqueue()
    assert type(app.job(job.id).priority) is int and app.job(job.id).priority in (0, 3)


def test_enqueue_many_says_what_it_takes(memory_app: Holdfast) -> None:
    call: Any = plain(memory_app).bind()
    with pytest.raises(ConfigurationError, match="several bound calls, not a BoundCall"):
        memory_app.enqueue_many(call)
    with pytest.raises(ConfigurationError, match="several bound calls, not a BoundCall"):
        asyncio.run(memory_app.aenqueue_many(call))


def test_a_parameter_may_be_called_self(memory_app: Holdfast) -> None:
    @memory_app.task(name="selfish")
    def selfish(self: int) -> int:
        return self

    assert selfish.enqueue(self=7).args == {"self": 7}
    assert selfish.options(priority=1).enqueue(self=7).args == {"self": 7}
    assert memory_app.task_by_name("far", priority=1).enqueue(self=7).args == {"self": 7}
    assert asyncio.run(memory_app.task_by_name("far").aenqueue(self=7)).args == {"self": 7}
    memory_app.work(drain=True)
    assert memory_app.counts()["default"]["succeeded"] == 2


def test_a_producer_without_code_cannot_forge_positional_arguments(memory_app: Holdfast) -> None:
    with pytest.raises(InvalidArguments, match="no parameter can be called"):
        memory_app.task_by_name("far").enqueue(**{"*": [1]})
    assert memory_app.task_by_name("far").enqueue(1, b=2).args == {"*": [1], "b": 2}


def test_a_job_names_its_own_twins_on_a_running_loop(memory_app: Holdfast) -> None:
    job = plain(memory_app).enqueue()

    async def main() -> None:
        with pytest.raises(ConfigurationError, match=r"job\.arefresh\(\)"):
            job.refresh()
        with pytest.raises(ConfigurationError, match=r"job\.acancel\(\)"):
            job.cancel()

    asyncio.run(main())
