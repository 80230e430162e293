"""The doctor on the pace of work: handlers that run far longer than usual, backlogs that grow or drain."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.inspection import explain
from holdfast.inspection.pace import RECENT_SECONDS, Backlog, Pace, Usual, drained_in, judge_pace, look_at_pace, turn
from holdfast.lifecycle import State
from holdfast.records import ClaimRequest, JobRecord, NewJob, WorkerRecord
from holdfast.rollups import Recording, Rollup, bucket_of

NOW = 1_000_000.0
SEND = Usual(runs=500, p50=2.0, p99=10.0)
BACKLOG = Backlog(queue="mail", waiting=6000, oldest_seconds=3600.0, came=100, capped=False, ended=700)


def running(task: str, seconds: float, number: int = 1) -> list[JobRecord]:
    return [
        JobRecord(id=f"{task}{n}", seq=n, task=task, queue="q", state=State.RUNNING, args=b"", started_at=NOW - seconds)
        for n in range(number)
    ]


def verdicts(pace: Pace) -> dict[str, str]:
    return {one.about: one.verdict for one in judge_pace(pace) if one.verdict != "fine"}


@pytest.mark.parametrize(
    ("seconds", "number", "usual", "found"),
    [
        (30.0, 1, SEND, {}),
        (61.0, 1, SEND, {"pace": "note"}),
        (61.0, 4, SEND, {"pace": "note"}),
        (61.0, 5, SEND, {"pace": "wrong"}),  # half of the slots
        (61.0, 9, replace(SEND, p99=13.0), {}),
        (61.0, 9, replace(SEND, runs=5), {}),
    ],
)
def test_slots_held_far_longer_than_usual_are_found(
    seconds: float, number: int, usual: Usual, found: dict[str, str]
) -> None:
    pace = Pace(
        now=NOW,
        running=[*running("send", seconds, number), *running("new", 9999.0)],
        usual={"send": usual},
        workers=[WorkerRecord(id="w", slots=10), WorkerRecord(id="x", slots=90, expired=True)],
    )
    assert verdicts(pace) == found
    for one in judge_pace(pace):
        assert one.text.startswith(f"{number} of 10 slots are held") and "usually 2 s" in one.text
        assert len(one.facts["jobs"]) == number


@pytest.mark.parametrize(
    ("backlog", "found", "text"),
    [
        (BACKLOG, {}, "mail in about 100 min"),
        (replace(BACKLOG, came=701), {"backlog": "note"}, "701 arrived and 700 ended"),
        (replace(BACKLOG, came=1300), {"backlog": "note"}, "it grows by 60 a minute and doubles in about 100 min"),
        (replace(BACKLOG, came=10_000, capped=True), {"backlog": "note"}, "10,000+ arrived"),
        (replace(BACKLOG, came=701, oldest_seconds=RECENT_SECONDS / 3), {}, ""),
        (replace(BACKLOG, ended=0, came=0), {}, ""),
    ],
)
def test_a_backlog_that_grows_is_found_and_one_that_drains_is_estimated(
    backlog: Backlog, found: dict[str, str], text: str
) -> None:
    pace = Pace(now=NOW, backlogs=[backlog])
    assert verdicts(pace) == found
    assert text in "".join(one.text for one in judge_pace(pace))


def test_what_does_not_shrink_has_no_end() -> None:
    assert drained_in(replace(BACKLOG, came=700)) is None
    assert drained_in(BACKLOG) == pytest.approx(6000.0)


async def _scene(backend: MemoryBackend) -> None:
    """A job that runs for two hours, of a task whose others took two seconds, and a backlog that grows."""
    await backend.open()
    start = await backend.clock() - 7200.0
    await backend.register(WorkerRecord(id="w", slots=1, queues=("q",), lease_seconds=9000.0), start)
    await backend.enqueue([NewJob(id="long", task="send", queue="q")], start)
    assert (await backend.claim(ClaimRequest(worker="w", call=1, queues=("q",), most=1), start)).leases
    runs = [0] * (bucket_of(2.0) + 1)
    runs[-1] = 50
    counted = Rollup(outcome="succeeded", count=50, queue="q", task="send", runs=tuple(runs))
    await backend.record(Recording(worker="w", number=1, rollups=(counted,)), start + 7190.0)
    await backend.enqueue([NewJob(id=f"old{n}", task="send", queue="q") for n in range(60)], start)
    await backend.enqueue([NewJob(id=f"new{n}", task="send", queue="q") for n in range(60)])


def test_a_look_finds_both_and_explain_says_how_long_is_usual() -> None:
    async def run() -> None:
        backend = MemoryBackend()
        await _scene(backend)
        pace = await look_at_pace(backend)
        assert pace.usual["send"].runs == 50 and 1.0 < pace.usual["send"].p50 < 3.0
        (backlog,) = pace.backlogs
        assert (backlog.waiting, backlog.came, backlog.ended) == (120, 60, 50)
        assert verdicts(pace) == {"pace": "wrong", "backlog": "note"}
        told = await explain(backend, "long")
        assert any(sentence.startswith("It has run for 2 h; half of its task's runs") for sentence in told.reasons)
        await backend.close()

    asyncio.run(run())


def test_a_ready_job_says_who_holds_the_slots_and_when_its_turn_may_come() -> None:
    async def run() -> None:
        backend = MemoryBackend()
        await _scene(backend)
        told = await explain(backend, "new0")
        assert told.summary == "It is ready, but no slot is free: 1 live worker, 1 slot."
        held = "1 of 1 slots are held by handlers that run far longer than usual: send (1, the longest for 2 h; usually"
        assert any(sentence.startswith(held) for sentence in told.reasons), told.reasons
        assert any("Queue 'q' fills faster than it drains" in sentence for sentence in told.reasons)
        await backend.close()

    asyncio.run(run())


def test_a_backlog_says_when_it_is_done_with() -> None:
    assert turn(BACKLOG).startswith(
        "At its current pace queue 'mail' will be empty in about 100 min: in the last 10 min 100"
    )
    assert turn(replace(BACKLOG, came=0, ended=0)) == ""
