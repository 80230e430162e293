"""Limits of a queue and of a task over four worker processes that are killed: never one too many, no place lost."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.lifecycle import State
from tests.chaos.flow_scene import Crew, all_succeeded, handler_spans, most_at_once, spans
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

LIMIT = 3  # as flow_app.py declares it
JOBS = 60
QUEUES = ["narrow", "left", "right"]


def test_a_limit_holds_through_kills_and_is_used_to_the_full_again(crew: Crew) -> None:
    with crew.app() as app:
        narrow = app.named("plain", queue="narrow", max_stalls=100)
        either = [app.named("scarce", queue=queue, max_stalls=100) for queue in ("left", "right")]
        first = [call.bind(label="first", n=0, until="killed") for call in (narrow, *either)]
        app.enqueue_many(first)
        app.enqueue_many(narrow.bind(label="narrow", n=n, seconds=0.05) for n in range(JOBS))
        app.enqueue_many(either[n % 2].bind(label="scarce", n=n, seconds=0.05) for n in range(JOBS))
        for _ in range(4):
            crew.start("work", queues=QUEUES)
        until(lambda: len(crew.lines("start", label="first")) == 3, what="the first have begun")
        for label in ("narrow", "scarce"):
            until(partial(lambda of: len(crew.lines("start", label=of)) > JOBS // 4, label), what="some have begun")
        victims = {line["pid"] for line in crew.lines("start", label="first")}  # each of them holds a place
        crew.kill(*victims)
        (crew.folder / "killed").touch()
        for _ in victims:
            crew.start("work", queues=QUEUES)
        until(lambda: all_succeeded(app), what="all succeed")
        assert all(app.job(call.id).stalls for call in first)

        # Places that the killed ones held are free again: as many run as the limit says, and no more.
        app.enqueue_many(narrow.bind(label="narrow", n=n, until="gate") for n in range(2 * LIMIT))
        app.enqueue_many(either[n % 2].bind(label="scarce", n=n, until="gate") for n in range(2 * LIMIT))
        for label in ("narrow", "scarce"):
            until(partial(lambda of: len(going(crew, of)) == LIMIT, label), what="the limit is used to the full")
        probe = app.named("plain", queue="left").enqueue(label="probe", n=0)
        until(lambda: probe.refresh().state is State.SUCCEEDED, what="claims have come and gone")
        running = [job for job in crew.jobs() if job.state is State.RUNNING]
        assert [sum(job.task == task for job in running) for task in ("plain", "scarce")] == [LIMIT, LIMIT]
        (crew.folder / "gate").touch()
        until(lambda: all_succeeded(app), what="all succeed")
        assert app.audit().violations == []
    jobs = crew.jobs()
    noted = [line for what in ("start", "going on", "end") for line in crew.lines(what)]
    for made in ([job for job in jobs if job.queue == "narrow"], [job for job in jobs if job.task == "scarce"]):
        assert len(made) >= JOBS + 2 * LIMIT
        assert most_at_once([(start, end) for start, end, _ in spans(made)]) == LIMIT
        ids = {job.id for job in made}
        assert most_at_once(handler_spans(line for line in noted if line["job"] in ids)) == LIMIT
    assert crew.lines("crashed") == []


def going(crew: Crew, label: str) -> set[str]:
    """The jobs of that label whose handlers are at it."""
    ended = {line["job"] for line in crew.lines("end", label=label)}
    return {line["job"] for line in crew.lines("start", label=label)} - ended
