"""Fan-out: an event becomes a job for every task that subscribes to its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import Holdfast, TaskRouter
from holdfast.errors import ConfigurationError, InvalidArguments


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("memory://") as made:

        @made.task(name="receipt", subscribes="order.paid")
        def receipt(order: int, to: str = "nobody") -> None: ...

        shared = TaskRouter()

        @shared.task(name="ledger", queue="books", subscribes=["order.paid", "order.refunded"])
        def ledger(order: int) -> None: ...

        made.include(shared)

        @made.task(name="other")
        def other(order: int) -> None: ...

        yield made


def made(app: Holdfast) -> list[tuple[str, str, dict[str, object]]]:
    return sorted((job.task, job.queue, dict(job.args)) for job in app.jobs())


def test_every_subscriber_gets_a_job_with_the_values_it_has_parameters_for(app: Holdfast) -> None:
    result = app.publish("order.paid", {"order": 7, "to": "ann"})
    assert (result.created, result.kept) == (2, 0)
    assert made(app) == [("ledger", "books", {"order": 7}), ("receipt", "default", {"order": 7, "to": "ann"})]
    assert asyncio.run(app.apublish("order.refunded", {"order": 7}, delay=60)).created == 1
    assert [job.state for job in app.jobs(task="ledger")] == ["scheduled", "ready"]


def test_an_event_with_an_id_makes_its_jobs_once(app: Holdfast) -> None:
    assert app.publish("order.paid", {"order": 7}, id="order-7-paid").created == 2
    again = app.publish("order.paid", {"order": 7}, id="order-7-paid")
    assert (again.created, again.kept) == (0, 2)
    assert app.job("order-7-paid:ledger").args == {"order": 7}


def test_a_payload_that_one_subscriber_cannot_take_stores_nothing(app: Holdfast) -> None:
    with pytest.raises(InvalidArguments, match=r"order\.paid"):
        app.publish("order.paid", {"to": "ann"})
    with pytest.raises(ConfigurationError, match="by name"):
        app.publish("order.paid", [7])  # type: ignore[arg-type]
    assert made(app) == []


def test_a_topic_without_subscribers_here_is_refused_with_advice(app: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match=r"order\.paid.*Import the modules"):
        app.publish("order.payed")
    with pytest.raises(ConfigurationError):
        app.task(name="bad", subscribes=["a", 3])  # type: ignore[list-item]
