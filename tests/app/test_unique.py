"""Keys that keep, replace, raise, debounce, throttle and keep the last, in a sandbox whose clock is the test's."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import DuplicateJob, Holdfast, State
from holdfast.errors import ConfigurationError
from holdfast.testing import sandbox


def seen_by(app: Holdfast, **options: Any) -> tuple[Any, list[int]]:
    seen: list[int] = []

    @app.task(name="save", key="doc", **options)
    def save(n: int) -> None:
        seen.append(n)

    return save, seen


def test_debounce_waits_for_calm_and_runs_the_newest(memory_app: Holdfast) -> None:
    save, seen = seen_by(memory_app, on_conflict="debounce", wait=10)
    with sandbox(memory_app) as box:
        first = save.enqueue(1)
        assert first.created
        box.clock.advance(6)
        again = save.enqueue(2)
        assert (again.id, again.created, again.replaced) == (first.id, False, True)
        box.clock.advance(6)
        box.drain()
        assert seen == []
        box.clock.advance(5)
        box.drain()
        assert seen == [2]


def test_debounce_is_pushed_no_further_than_its_maximum(memory_app: Holdfast) -> None:
    save, seen = seen_by(memory_app, on_conflict="debounce", wait=10, wait_max=15)
    with sandbox(memory_app) as box:
        for n in range(4):
            save.enqueue(n)
            box.clock.advance(5)
        box.drain()
        assert seen == [3]


def test_extend_begins_the_window_anew_with_every_call(memory_app: Holdfast) -> None:
    save, _ = seen_by(memory_app, on_conflict="extend", window=60)
    with sandbox(memory_app) as box:
        made = []
        for n in range(3):
            made.append(save.enqueue(n).is_new)
            box.clock.advance(50)
        box.clock.advance(10)
        assert [*made, save.enqueue(3).is_new] == [True, False, False, True]


def test_throttle_makes_one_job_in_a_window(memory_app: Holdfast) -> None:
    save, seen = seen_by(memory_app, on_conflict="throttle", window=60)
    with sandbox(memory_app) as box:
        first = save.enqueue(1)
        box.drain()
        kept = save.enqueue(2)
        assert (kept.id, kept.created, kept.state) == (first.id, False, State.SUCCEEDED)
        box.clock.advance(61)
        assert save.enqueue(3).created
        box.drain()
        assert seen == [1, 3]


def test_keep_last_has_one_running_and_one_waiting_with_the_newest_arguments(memory_app: Holdfast) -> None:
    seen: list[int] = []

    @memory_app.task(name="save", key="doc", on_conflict="keep_last")
    def save(n: int) -> None:
        if n == 1:
            waiting = save.enqueue(2)
            newest = save.enqueue(3)
            assert waiting.created
            assert (newest.id, newest.created, newest.replaced) == (waiting.id, False, True)
            assert newest.refresh().state is State.WAITING
        seen.append(n)

    with sandbox(memory_app) as box:
        save.enqueue(1)
        box.drain()
        assert seen == [1, 3]


def test_a_global_key_holds_over_queues(memory_app: Holdfast) -> None:
    save, _ = seen_by(memory_app, key_scope="global")
    first = save.enqueue(1)
    assert save.options(queue="other").enqueue(2).id == first.id
    assert save.options(queue="other", key_scope="queue").enqueue(2).created


def test_until_started_the_next_call_makes_a_job_while_the_first_runs(memory_app: Holdfast) -> None:
    save, _ = seen_by(memory_app, key_until="started", on_conflict="raise")
    save.enqueue(1)
    with pytest.raises(DuplicateJob):
        save.enqueue(2)
    memory_app.work(drain=True)
    assert save.enqueue(3).created


def test_a_debounced_call_takes_no_time_of_its_own(memory_app: Holdfast) -> None:
    save, _ = seen_by(memory_app, on_conflict="debounce", wait=10)
    with pytest.raises(ConfigurationError, match="Leave out delay="):
        save.options(delay=5)
    assert save.options(key=None, delay=5).enqueue(1).created
    with pytest.raises(ConfigurationError, match="belongs to the task"):
        save.options(limit=3)


def test_expired_jobs_are_buried_or_dropped_as_chosen(memory_app: Holdfast) -> None:
    @memory_app.task(name="late", expires=5)
    def late() -> None: ...

    with sandbox(memory_app) as box:
        buried = late.enqueue()
        dropped = late.options(on_expire="drop").enqueue()
        box.clock.advance(6)
        box.drain()
        assert (buried.refresh().state, buried.reason) == (State.DEAD, "expired")
        assert (dropped.refresh().state, dropped.reason) == (State.CANCELLED, "expired")
        assert [letter.id for letter in memory_app.dead.list()] == [buried.id]


PRODUCERS, CALLS = 8, 20


@pytest.mark.parametrize(
    ("options", "replaced"),
    [
        ({"on_conflict": "debounce", "wait": 60}, True),
        ({"on_conflict": "throttle", "window": 60}, False),
        ({"on_conflict": "keep_last"}, True),
        ({"on_conflict": "replace", "key_scope": "global"}, True),
    ],
)
def test_eight_producers_make_one_job(app: Holdfast, options: dict[str, Any], replaced: bool) -> None:
    save, _ = seen_by(app, **options)
    app.open()
    with ThreadPoolExecutor(PRODUCERS) as pool:
        jobs = list(pool.map(save.enqueue, range(PRODUCERS * CALLS)))
    assert len({job.id for job in jobs}) == 1
    assert sum(job.created for job in jobs) == 1
    assert sum(job.replaced for job in jobs) == (len(jobs) - 1 if replaced else 0)
    assert len(list(app.jobs())) == 1
    assert app.audit().violations == []


def test_keep_last_under_producers_and_workers_never_loses_the_last_nor_runs_two(app: Holdfast) -> None:
    running, most, seen = 0, 0, []

    @app.task(name="save", key="doc", on_conflict="keep_last")
    async def save(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(n)
        running -= 1

    async def main() -> None:
        async with app.worker(slots=5):
            await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
            last = await save.aenqueue(-1)
            await last.aresult(timeout=30)

    async def produce() -> None:
        for n in range(CALLS):
            await save.aenqueue(n)

    asyncio.run(main())
    assert most == 1
    assert seen[-1] == -1
