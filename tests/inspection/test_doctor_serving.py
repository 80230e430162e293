"""The doctor on workers and waiting jobs: queues without a worker, expired workers, tasks that no worker has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.inspection import coverage
from holdfast.inspection.coverage import AppFacts, Service, judge_service, look_at_service
from holdfast.inspection.machine import Finding
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, GroupRecord, NewJob, Pause, QueueRule, WorkerRecord
from holdfast.worker_status import RunnerView, draw

WORKER = WorkerRecord(id="w", queues=("mail", "pdf"), isolates=True, running=2)
APP = AppFacts(name="shop:app", tasks={"send": "mail", "render": "pdf"}, aliases=frozenset({"old"}))
SOUND = Service(
    workers=[WORKER],
    counts={"mail": {State.READY: 3, State.RUNNING: 2}, "done": {State.SUCCEEDED: 9}},
    waiting={"send": 2, "old": 1},
    looked_at=3,
)


def verdicts(service: Service, app: AppFacts | None = APP) -> dict[str, str]:
    return {one.about: one.verdict for one in judge_service(service, app) if one.verdict != "fine"}


def finding(service: Service, about: str) -> Finding:
    return next(one for one in judge_service(service, APP) if one.about == about)


def test_where_everything_is_served_all_is_fine() -> None:
    assert verdicts(SOUND) == verdicts(SOUND, None) == {}
    assert [one.about for one in judge_service(SOUND, APP)] == ["workers", "queues", "tasks", "unknown"]
    assert [one.about for one in judge_service(SOUND, None)] == ["workers", "queues"]


STUCK = replace(WORKER, portrait=draw([], unbegun=["j1", "j2"]))
DEAF = RunnerView(
    pid=7, state="ready", alone=False, slots=1, running=1, done=0, memory_bytes=0, responds=False, jobs=("j1",)
)
EXPIRED = replace(WORKER, id="x", expired=True)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"workers": [], "counts": {}}, {"workers": "note", "tasks": "note"}),
        ({"workers": []}, {"workers": "note", "queues": "wrong", "tasks": "note"}),
        ({"workers": [WORKER, EXPIRED]}, {"workers": "note"}),
        ({"workers": [EXPIRED]}, {"workers": "wrong", "queues": "wrong", "tasks": "note"}),
        ({"workers": [replace(EXPIRED, running=0)], "counts": {}}, {"workers": "note", "tasks": "note"}),
        ({"counts": {"video": {State.READY: 1}}}, {"queues": "wrong"}),
        ({"counts": {"video": {State.WAITING: 1}}}, {"queues": "wrong"}),
        ({"counts": {"video": {State.SCHEDULED: 1}}}, {"queues": "note"}),
        ({"counts": {"video": {State.RUNNING: 1, State.DEAD: 4}}}, {}),
        ({"workers": [replace(WORKER, queues=("mail",))]}, {"tasks": "note"}),
        ({"waiting": {"send": 2, "gone": 5}}, {"unknown": "wrong"}),
        ({"pauses": [Pause(queue="mail")]}, {"pauses": "note"}),
        ({"stopped": [GroupRecord(queue="mail", name="ann", limit=1, stopped_by="j1")]}, {"stopped": "note"}),
        ({"workers": [STUCK]}, {"runners": "note"}),
        ({"untaken": {"mail": 3}}, {"priorities": "wrong"}),
        ({"workers": [replace(WORKER, portrait=draw([], unknown=["new"]))]}, {"deploy": "wrong"}),
        ({"workers": [WORKER, replace(WORKER, id="o", portrait=draw([], unknown=["new"]))]}, {"deploy": "note"}),
        ({"workers": [replace(WORKER, portrait=draw([DEAF]))]}, {"runners": "note"}),
    ],
)
def test_each_gap_is_found_and_nothing_else(change: dict[str, Any], found: dict[str, str]) -> None:
    service = replace(SOUND, **change)
    assert verdicts(service) == found
    assert all(one.next for one in judge_service(service, APP) if one.verdict != "fine")


def test_a_worker_that_cannot_isolate_is_reported_if_tasks_need_it() -> None:
    embedded = replace(SOUND, workers=[replace(WORKER, isolates=False)])
    assert verdicts(embedded) == {}
    assert verdicts(embedded, replace(APP, isolated=frozenset({"pdf"}))) == {"isolation": "note"}
    assert verdicts(SOUND, replace(APP, isolated=frozenset({"pdf"}))) == {}


def test_names_and_numbers_are_listed_largest_first_and_up_to_a_bound() -> None:
    many: Mapping[str, Mapping[State, int]] = {f"q{n}": {State.READY: n} for n in range(1, 10)}
    text = finding(replace(SOUND, counts=many), "queues").text
    assert "q9 (9), q8 (8), q7 (7), q6 (6), q5 (5) and 4 more" in text
    text = finding(replace(SOUND, waiting={"gone": 1}, looked_at=5000, more=True), "unknown").text
    assert "the newest 5,000 waiting jobs" in text


def test_the_store_is_read_in_bounded_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "PAGE", 4)
    monkeypatch.setattr(coverage, "JOBS_LOOKED_AT_MAX", 8)

    async def look(jobs: int, tasks: bool) -> Service:
        backend = MemoryBackend()
        await backend.open()
        await backend.enqueue([NewJob(id=f"j{n}", task="a" if n % 2 else "b", queue="mail") for n in range(jobs)])
        await backend.register(WORKER)
        await backend.pause(Pause(task="b"))
        return await look_at_service(backend, tasks=tasks)

    few = asyncio.run(look(6, tasks=True))
    assert (few.waiting, few.looked_at, few.more) == ({"a": 3, "b": 3}, 6, False)
    assert [one.id for one in few.workers] == ["w"]
    assert (few.counts["mail"], len(few.pauses)) == ({State.READY: 6}, 1)
    many = asyncio.run(look(20, tasks=True))
    assert (many.looked_at, many.more) == (8, True)
    assert asyncio.run(look(6, tasks=False)).looked_at == 0


def test_groups_that_a_dead_job_stops_are_found() -> None:
    async def scene() -> Service:
        backend = MemoryBackend()
        await backend.open()
        await backend.declare([QueueRule(name="mail", on_dead="stop"), QueueRule(name="pdf")])
        jobs = [
            NewJob(id=f"{queue}{n}", task="t", queue=queue, group="ann") for queue in ("mail", "pdf") for n in (1, 2)
        ]
        await backend.enqueue(jobs)
        await backend.register(WORKER)
        claimed = await backend.claim(ClaimRequest(worker="w", call=1, queues=("mail", "pdf"), most=2))
        dead = [Settlement(id=one.id, token=one.token, ending=Ending.BURIED) for one in claimed.leases]
        await backend.settle(dead)
        return await look_at_service(backend, tasks=False)

    service = asyncio.run(scene())
    assert [(group.queue, group.name, group.stopped_by) for group in service.stopped] == [("mail", "ann", "mail1")]
    assert "mail ann (1)" in finding(service, "stopped").text
