"""Debounce, throttle and keep_last under eight producers at once, while workers run the jobs and are killed.

Who pushed when is known by the moments before and after the call: the store did it in between. All of it happens on one
machine, so the producers' wall clock is the store's.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast.records import JobRecord
from tests.chaos.flow_scene import Crew, all_succeeded, handler_spans, most_at_once
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

PRODUCERS, SECONDS, LULL_SECONDS = 8, 4.0, 0.7
THROTTLE_SECONDS, WAIT_SECONDS, WAIT_MAX_SECONDS = 0.4, 0.3, 0.8  # as flow_app.py declares them
LABELS = ("steady", "in bursts")
FIRST = 6  # one of each task under each label
MOMENT = 2e-3  # between reading a clock here and reading it there: time of day is not told finer by every store

Push = dict[str, Any]


class Story:
    """What was pushed under one key of one task, and how it ended."""

    def __init__(self, crew: Crew, jobs: dict[str, JobRecord], task: str, label: str) -> None:
        self.jobs = jobs
        self.pushes = crew.lines("push", task=task, label=label)
        told = {push["job"] for push in self.pushes}
        self.starts = [line for line in crew.lines("start", label=label) if line["job"] in told]
        self.noted = self.starts + [line for line in crew.lines("end", label=label) if line["job"] in told]
        self.ran = list(dict.fromkeys(line["job"] for line in self.starts))  # in the order they first ran

    def to(self, job: str) -> list[Push]:
        return [push for push in self.pushes if push["job"] == job]

    def winner(self, job: str) -> Push:
        """The push whose arguments ran."""
        [args] = {(line["by"], line["n"]) for line in self.starts if line["job"] == job}
        [push] = [push for push in self.pushes if (push["by"], push["n"]) == args]
        return push


def others_hold(crew: Crew) -> bool:
    """Whether of every task and key another job was made while the first one runs."""
    made = {(push["task"], push["label"]) for push in crew.lines("push", created=True) if push["by"] != "the first"}
    return len(made) == FIRST


@pytest.fixture
def stories(crew: Crew) -> dict[tuple[str, str], Story]:
    with crew.app() as app:
        for _ in range(3):
            crew.start("work", queues=["keyed"], slots=8)
        for number in range(PRODUCERS):
            crew.start("produce", by=f"p{number}", seconds=SECONDS, lull=LULL_SECONDS, seed=number)
        crew.start("push_each", by="the first")
        until(lambda: len(crew.lines("start", by="the first")) == FIRST, what="the first jobs are at it")
        until(lambda: len(crew.lines("open")) == PRODUCERS, what="the producers are there")
        (crew.folder / "go").touch()
        until(lambda: others_hold(crew), what="others hold the keys of the first")
        victims = {line["pid"] for line in crew.lines("start", by="the first")}
        crew.kill(*victims)
        (crew.folder / "killed").touch()
        for _ in victims:
            crew.start("work", queues=["keyed"], slots=8)
        until(lambda: len(crew.lines("produced")) == PRODUCERS + 1, what="the producers are done")
        crew.start("push_each", by="the last")
        until(lambda: crew.lines("produced", by="the last"), what="the last pushes are made")
        until(lambda: all_succeeded(app), what="all succeed")
        assert app.audit().violations == []
    assert crew.lines("crashed") == []
    jobs = {job.id: job for job in crew.jobs()}
    assert all(jobs[line["job"]].stalls for line in crew.lines("push", by="the first"))
    assert {push["job"] for push in crew.lines("push")} == set(jobs)  # nothing was answered that is not there
    return {
        (task, label): Story(crew, jobs, task, label)
        for task in ("throttle", "debounce", "keep_last")
        for label in LABELS
    }


def newest_won(story: Story, job: str) -> None:
    """Of all pushes to a job that had not started, the last one's arguments ran, as far as anybody can tell."""
    won = story.winner(job)
    assert won in story.to(job)
    assert [push for push in story.to(job) if push["began"] > won["ended"]] == []


def test_keys_hold_as_they_say_under_eight_producers(stories: dict[tuple[str, str], Story]) -> None:
    for label in LABELS:
        throttled(stories["throttle", label])
        debounced(stories["debounce", label])
        kept_last(stories["keep_last", label])


def throttled(story: Story) -> None:
    """At most one job a window; a push is passed over only by a job whose window has not passed."""
    made = sorted((story.jobs[job] for job in {push["job"] for push in story.pushes}), key=lambda job: job.created_at)
    assert len(made) > 1
    gaps = [later.created_at - earlier.created_at for earlier, later in itertools.pairwise(made)]
    assert [gap for gap in gaps if gap < THROTTLE_SECONDS - 1e-5] == []
    assert sum(push["created"] for push in story.pushes) == len(made)
    for push in story.pushes:
        assert push["created"] == (push["job"] == push["call"])
        assert push["began_wall"] < story.jobs[push["job"]].created_at + THROTTLE_SECONDS + MOMENT


def debounced(story: Story) -> None:
    """Each job runs with the arguments of the last push, `wait` after it, and never later than its longest wait."""
    assert len(story.ran) > 1
    for push in story.pushes:
        assert push["created"] != push["replaced"]  # a push is never passed over
    for job in story.ran:
        newest_won(story, job)
        record, won = story.jobs[job], story.winner(job)
        due = record.due_at if not record.errors else None  # a retry has a due time of its own
        first = record.started_at if not record.errors else record.errors[0].started_at
        latest = record.created_at + WAIT_MAX_SECONDS
        assert first is not None
        assert first >= min(won["began_wall"] + WAIT_SECONDS, latest) - MOMENT
        if due is not None:
            bound = min(won["ended_wall"] + WAIT_SECONDS, latest)
            assert due <= max(bound, won["ended_wall"]) + MOMENT  # pushed later than that: due at once
            assert due >= min(won["began_wall"] + WAIT_SECONDS, latest) - MOMENT
    assert story.winner(story.ran[-1])["by"] == "the last"


def kept_last(story: Story) -> None:
    """Never two at once; what runs later was not pushed earlier; the newest runs last."""
    assert len(story.ran) > 1
    assert most_at_once(handler_spans(story.noted)) == 1
    for push in story.pushes:
        assert push["created"] != push["replaced"]
    for job in story.ran:
        newest_won(story, job)
    winners = [story.winner(job) for job in story.ran]
    assert [1 for earlier, later in itertools.combinations(winners, 2) if later["ended"] < earlier["began"]] == []
    assert winners[-1]["by"] == "the last"
