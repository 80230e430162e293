"""What workers record: roll-ups and events; and that a store that refuses it changes nothing for jobs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from holdfast import Bury, Holdfast, RetryPolicy, Snooze
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.events import Dead, Event, Failed, QueueDrained, Succeeded
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import Lease, Recovered
from holdfast.rollups import OTHER, Recording, bucket_of
from holdfast.worker.keeper.meter import Meter
from holdfast.worker.keeper.runners import CELLS_MAX, COMMON_MAX, EVENTS_MAX, Journal


def lease(task: str = "t", started_at: float = 100.0, due_at: float = 98.0) -> Lease:
    return Lease("j", "token", 1, task, "q", b"{}", started_at=started_at, due_at=due_at)


def kept(app: Holdfast, after: int = 0) -> list[Event]:
    """The events the store keeps now."""
    page = app._do("events", lambda backend: backend.events(after))
    found = []
    for event in app.watch(after=after):
        found.append(event)
        if event.position >= page.position:
            break
    return found


def test_outcomes_of_a_worker_are_counted_and_its_events_can_be_followed() -> None:
    app = Holdfast("memory://")
    snoozed: list[int] = []

    @app.task(name="one", retry=RetryPolicy(limit=1, base=0.0, jitter=0.0))
    def one(kind: str) -> None:
        if kind == "fail":
            raise ValueError("no")
        if kind == "bury":
            raise Bury("enough")
        if kind == "snooze" and not snoozed:
            snoozed.append(1)
            raise Snooze(0.0)

    with app:
        for kind in ("ok", "ok", "fail", "bury", "snooze"):
            one.enqueue(kind)
        app.work(drain=True)
        [line] = app.stats(by="task").lines
        assert line.name == "one"
        assert line.counts == {"succeeded": 3, "failed": 1, "dead": 2, "snoozed": 1}
        assert line.run.p50 is not None and line.wait.p50 is not None
        [mine] = app.stats(by="worker").lines
        assert mine.counts == line.counts
        assert app.stats(by="queue").total.counts == line.counts
        seen = kept(app)
        names = Counter(event.name for event in seen)
        assert names["succeeded"] == 3 and names["dead"] == 2 and names["failed"] == 2 and names["started"] == 7
        assert names["worker_started"] == names["worker_stopped"] == names["queue_drained"] == 1
        dead = [event for event in seen if isinstance(event, Dead)]
        assert all(event.error is None or not event.error.traceback for event in dead)
        assert [event.position for event in seen] == sorted(event.position for event in seen)


def test_a_worker_can_be_told_to_record_nothing() -> None:
    app = Holdfast("memory://")

    @app.task(name="quiet")
    def quiet() -> None: ...

    with app:
        quiet.enqueue()
        app.work(drain=True, history=False)
        assert app.stats().lines == ()
        assert app._do("events", lambda backend: backend.events(0)).events == ()


@pytest.mark.parametrize("error", [BackendUnavailable("no"), OutcomeUnknown("record"), ConfigurationError("no right")])
def test_a_store_that_refuses_recordings_delays_and_loses_no_job(error: Exception, monkeypatch: Any) -> None:
    app = Holdfast("memory://")
    refused: list[Recording] = []

    @app.task(name="going_on")
    def going_on(n: int) -> int:
        return n

    async def refuse(recording: Recording, now: float | None = None) -> bool:
        refused.append(recording)
        raise error

    with app:
        monkeypatch.setattr(app._backend, "record", refuse)
        jobs = [going_on.enqueue(n) for n in range(50)]
        drained = app.work(drain=True)
        assert (drained.succeeded, drained.left) == (50, 0)
        assert all(app.job(job.id).state is State.SUCCEEDED for job in jobs)
    assert refused


def test_a_recording_without_a_reply_is_repeated_as_it_was_and_counts_once(monkeypatch: Any) -> None:
    app = Holdfast("memory://")
    numbers: list[int] = []
    again = threading.Event()

    @app.task(name="counted")
    def counted() -> None: ...

    with app:
        record = app._backend.record

        async def lose_reply(recording: Recording, now: float | None = None) -> bool:
            done = await record(recording, now)
            numbers.append(recording.number)
            if len(numbers) == 1:
                raise OutcomeUnknown("record")
            again.set()
            return done

        monkeypatch.setattr(app._backend, "record", lose_reply)
        counted.enqueue()

        async def work() -> None:
            async with app.worker():
                assert await asyncio.to_thread(again.wait, 30)

        asyncio.run(work())
        assert numbers[:2] == [1, 1]
        assert app.stats().total.counts.get("succeeded") == 1


def test_operators_pauses_and_deletions_are_events_with_their_names() -> None:
    with Holdfast("memory://") as app:
        job = app.named("somewhere").enqueue()
        app.pause(queue="mail", reason="broken", by="ann")
        app.resume(queue="mail", by="bob")
        assert not app.resume(queue="mail", by="carl")
        app.delete(job, by="dora")
        assert [(event.name, getattr(event, "by", "")) for event in kept(app)] == [
            ("paused", "ann"),
            ("resumed", "bob"),
            ("removed", "dora"),
        ]


def test_watching_by_query_and_by_name() -> None:
    app = Holdfast("memory://")

    @app.task(name="mail.send", queue="mail")
    def send() -> None: ...

    @app.task(name="pdf", queue="pdf")
    def pdf() -> None: ...

    async def first(query: str | None, names: list[str] | None) -> Event:
        async for event in app.watch(query, events=names, after=0, every=0.01):
            return event
        raise AssertionError

    with app:
        send.enqueue()
        pdf.enqueue()
        app.work(drain=True)
        event = asyncio.run(asyncio.wait_for(first("task:mail.*", ["succeeded"]), 10))
        assert isinstance(event, Succeeded) and event.task == "mail.send" and event.at > 0
        drained = asyncio.run(asyncio.wait_for(first("queue:pdf", ["queue_drained"]), 10))
        assert isinstance(drained, QueueDrained) and drained.queue == "pdf"
        with pytest.raises(ConfigurationError, match=r"no event is named 'succeded'\. Did you mean succeeded"):
            app.watch(events=["succeded"])
        with pytest.raises(ConfigurationError, match="carry no arguments"):
            app.watch("args.user:1")


def test_a_journal_counts_times_by_bucket_and_by_the_stores_clock() -> None:
    journal = Journal()
    journal.arrived(lease(), 1000.0)
    journal.started([lease()], "w")
    journal.settled([lease()], Ending.SUCCEEDED, 1000.5)
    recording = journal.take("w", 1)
    assert recording is not None
    of_worker, of_task = recording.rollups
    assert of_task.waits[bucket_of(2.0)] == of_task.runs[bucket_of(0.5)] == of_task.count == 1
    assert len(of_task.waits) == bucket_of(2.0) + 1
    assert (of_worker.worker, of_worker.task, of_worker.waits) == ("w", "", of_task.waits)
    assert journal.take("w", 2) is None


def test_a_journal_is_bounded_and_says_what_it_dropped() -> None:
    journal = Journal()
    for n in range(CELLS_MAX + 50):
        journal.settled([lease(task=f"t{n}")], Ending.SUCCEEDED, 0.0)
    facts: dict[str, Any] = {"job_id": "j", "task": "t", "queue": "q"}
    journal.seen(*(Succeeded(**facts) for _ in range(COMMON_MAX + 7)))
    journal.seen(*(Failed(**facts) for _ in range(EVENTS_MAX)))
    journal.seen(QueueDrained(queue="q"))
    recording = journal.take("w", 1)
    assert recording is not None
    tasks = [one for one in recording.rollups if one.queue]
    assert len(tasks) == CELLS_MAX + 1 and sum(one.count for one in tasks) == CELLS_MAX + 50
    assert [one.count for one in tasks if one.task == OTHER] == [50]
    names = Counter(event.name for event in recording.events)
    assert names == {
        "succeeded": COMMON_MAX,
        "failed": EVENTS_MAX - COMMON_MAX,
        "queue_drained": 1,
        "events_dropped": 1,
    }
    assert recording.events[-1].body == b'{"worker":"w","dropped":{"succeeded":7,"failed":100}}'


def test_stalls_that_this_worker_recovered_are_counted_by_how_they_ended() -> None:
    journal = Journal()
    about: dict[str, Any] = {"id": "j", "task": "t", "queue": "q", "group": None, "worker": "gone", "stalls": 1}
    journal.recovered(
        [
            Recovered(**about, state=State.READY, counted=True),
            Recovered(**about, state=State.DEAD, counted=True),
            Recovered(**about, state=State.READY, counted=False),
        ]
    )
    recording = journal.take("w", 1)
    assert recording is not None
    assert {one.outcome: one.count for one in recording.rollups} == {"stalled": 1, "dead": 1}


@pytest.mark.parametrize(("stalls", "outcome"), [(0, "stalled"), (2, "stalled"), (3, "dead")])
def test_a_process_that_dies_once_too_often_is_counted_as_a_death(stalls: int, outcome: str) -> None:
    journal, meter = Journal(), Meter()
    journal.meter = meter
    held = Lease("j", "token", 1, "t", "q", b"{}", stalls=stalls, max_stalls=3, started_at=100.0, due_at=98.0)
    journal.ended(held, Settlement(id=held.id, token=held.token, ending=Ending.STALLED, alone=True), 0.5)
    recording = journal.take("w", 1)
    assert recording is not None
    assert [(one.outcome, one.count) for one in recording.rollups if one.task] == [(outcome, 1)]
    assert meter.ended == {("q", "t", outcome): 1} and meter.stalls == {("q", "t"): 1}
