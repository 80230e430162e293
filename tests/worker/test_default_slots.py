"""How many jobs a runner of `holdfast work` runs at once by default: it depends on whether its tasks need threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import Holdfast
from holdfast.options import SLOTS_ASYNC, SLOTS_DEFAULT, WorkerOptions
from holdfast.worker.keeper.commands import Commands
from holdfast.worker.keeper.lease_renewal import Ledger
from holdfast.worker.processes.runner_endpoint import slots_for
from holdfast.worker.processes.spawner import Plan

ASYNC, THREADS = (SLOTS_ASYNC, "async"), (SLOTS_DEFAULT, "threads")


async def waits() -> None: ...
def computes() -> None: ...
async def waits_for_many(calls: list[Any]) -> None: ...
async def waits_for_any(task: str, arguments: dict[str, Any]) -> None: ...
def computes_any(task: str, arguments: dict[str, Any]) -> None: ...


Registered = tuple[Callable[..., Any], dict[str, Any]]

# tasks, with their options; the queues that the worker serves; what it decides
TABLE: list[tuple[list[Registered], list[str] | None, tuple[int, str]]] = [
    ([(waits, {})], None, ASYNC),
    ([(computes, {})], None, THREADS),
    ([(waits, {}), (computes, {})], None, THREADS),
    ([(waits, {"queue": "http"}), (computes, {"queue": "pdf"})], None, THREADS),
    ([(waits, {"queue": "http"}), (computes, {"queue": "pdf"})], ["http"], ASYNC),
    ([(waits, {"queue": "http"}), (computes, {"queue": "pdf"})], ["http", "pdf"], THREADS),
    ([(waits, {"queue": "http"})], ["other"], THREADS),
    ([], ["other"], THREADS),
    ([(waits, {}), (computes, {"isolation": "process"})], None, ASYNC),
    ([(waits, {"isolation": "process"})], None, THREADS),
    ([(waits, {}), (waits_for_many, {"batch": 10})], None, THREADS),
    ([(waits, {"queue": "http"}), (computes_any, {"queue": "rest", "catch_all": True})], ["http"], THREADS),
    ([(waits, {"queue": "http"}), (waits_for_any, {"queue": "rest", "catch_all": True})], ["http"], ASYNC),
]


@pytest.mark.parametrize(("registered", "queues", "decided"), TABLE)
def test_a_runner_has_more_slots_if_no_job_needs_a_thread(
    registered: list[Registered], queues: list[str] | None, decided: tuple[int, str]
) -> None:
    app = Holdfast("memory://")
    for function, options in registered:
        app.task(name=function.__name__, **options)(function)
    assert slots_for(app, None, queues) == decided
    assert slots_for(app, 3, queues) == (3, "option")


def test_a_number_that_was_asked_for_is_divided_and_no_number_is_left_to_the_runners() -> None:
    assert Plan(app="shop:app", runners=2, slots=5).slots_each == 3
    assert Plan(app="shop:app", runners=2).slots_each is None


def test_options_with_other_slots_are_otherwise_the_same() -> None:
    options = WorkerOptions(queues={"mail": 2}, lease=5.0, name="m")
    other = options.with_slots(200)
    assert (options.slots, other.slots) == (10, 200)
    assert other.with_slots(10) == options


@pytest.mark.parametrize(
    ("started", "lowered", "reloaded", "used"),
    [(200, None, 20, 20), (20, None, 200, 200), (200, 50, 20, 20), (20, 5, 200, 5), (20, 5, 20, 5)],
)
def test_reloaded_code_changes_the_default_but_not_what_an_operator_chose(
    started: int, lowered: int | None, reloaded: int, used: int
) -> None:
    ledger, told = Ledger(started, {}), Mock()
    commands = Commands(Mock(), Mock(), Mock(), ledger, started, set_slots=told, stop=Mock())
    if lowered is not None:
        commands._resize(lowered)
    commands.change_slots(reloaded)
    assert ledger.slots == used
    assert commands._resize(reloaded) == f"{reloaded} slots" and ledger.slots == reloaded
    assert told.call_args.args == (reloaded,)
