"""Conformance of record: roll-ups add up, a repeated call adds nothing, what is old goes, events keep their order.

Called by run_case.
"""

from __future__ import annotations

from ...lifecycle import State
from ...records import EVENTS_KEPT_MAX, ROLLUPS_PER_PRUNE_MAX
from ...rollups import SPAN_SECONDS, KeptEvent, Recording, Rollup, RollupQuery, Span, start_of
from .registry import case, case_for_each
from .world import DAY, HOUR, World

ENDED = Rollup(outcome="succeeded", count=3, queue="mail", task="send", waits=(1, 2), runs=(0, 0, 3))


async def record(
    world: World, number: int, *rollups: Rollup, worker: str = "w1", keep: tuple[float, float] | None = None
) -> bool:
    minutes, hours = keep or (None, None)
    recording = Recording(worker=worker, number=number, rollups=rollups, keep_minutes=minutes, keep_hours=hours)
    return await world.backend.record(recording, now=world.now)


async def found(world: World, span: Span = "minute", **fields: str | bool) -> list[Rollup]:
    query = RollupQuery(span=span, since=0.0, until=world.now + DAY, **fields)  # type: ignore[arg-type]
    return await world.backend.rollups(query)


def at(world: World, span: Span = "minute", **fields: object) -> Rollup:
    """What ENDED becomes when it is recorded now."""
    values = {name: getattr(ENDED, name) for name in ENDED.__struct_fields__}
    return Rollup(**{**values, "at": start_of(span, world.now), **fields})


@case
async def counts_of_several_calls_and_workers_add_up_by_minute_and_hour(world: World) -> None:
    assert await record(world, 1, ENDED)
    longer = Rollup(outcome="succeeded", count=1, queue="mail", task="send", waits=(0, 0, 0, 0, 1), runs=(1,))
    assert await record(world, 1, longer, worker="w2")
    for span in SPAN_SECONDS:
        both = at(world, span, count=4, waits=(1, 2, 0, 0, 1), runs=(1, 0, 3))
        assert await found(world, span) == [both]


@case
async def outcomes_tasks_queues_and_minutes_are_kept_apart(world: World) -> None:
    first = at(world)
    failed = Rollup(outcome="failed", count=1, queue="mail", task="send")
    other = Rollup(outcome="succeeded", count=2, queue="bulk", task="send\0odd \u2603")
    await record(world, 1, ENDED, failed)
    world.advance(60.0)
    await record(world, 2, other, ENDED)
    tasks = [(one.queue, one.outcome, one.count) for one in await found(world)]
    assert tasks == [
        ("mail", "failed", 1),
        ("mail", "succeeded", 3),
        ("bulk", "succeeded", 2),
        ("mail", "succeeded", 3),
    ]
    assert (await found(world))[1] == first
    assert [one.queue for one in await found(world, queue="bulk")] == ["bulk"]
    assert len(await found(world, task="send")) == 3
    query = RollupQuery(span="minute", since=start_of("minute", world.now), until=world.now + 60.0)
    assert len(await world.backend.rollups(query)) == 2


@case
async def a_repeated_or_older_recording_changes_nothing(world: World) -> None:
    assert await record(world, 5, ENDED)
    event = KeptEvent(name="dead", body=b"{}")
    for number in (5, 4):
        repeated = Recording(worker="w1", number=number, rollups=(ENDED,), events=(event,))
        assert not await world.backend.record(repeated, now=world.now)
    assert [one.count for one in await found(world)] == [3]
    assert (await world.backend.events(0)).events == ()
    assert await record(world, 6, ENDED)
    assert [one.count for one in await found(world)] == [6]


@case
async def a_workers_counts_are_kept_by_the_minute_and_shown_apart(world: World) -> None:
    mine = Rollup(outcome="succeeded", count=3, worker="w1", runs=(3,))
    await record(world, 1, ENDED, mine)
    assert await found(world) == [at(world)]
    shown = await found(world, workers=True)
    assert [(one.worker, one.count, one.runs) for one in shown] == [("w1", 3, (3,))]
    assert await found(world, "hour", workers=True) == []


@case
async def old_rollups_are_pruned_in_bounded_steps(world: World) -> None:
    many = [Rollup(outcome="succeeded", count=1, queue="q", task=f"t{n:04}") for n in range(ROLLUPS_PER_PRUNE_MAX + 20)]
    await record(world, 1, *many)
    world.advance(2 * HOUR)
    await record(world, 2, ENDED, keep=(HOUR, DAY))
    assert len(await found(world)) == 20 + 1
    assert len(await found(world, "hour")) == len(many) + 1
    await record(world, 3, keep=(HOUR, DAY))
    assert await found(world) == [at(world)]
    world.advance(2 * DAY)
    await record(world, 4, keep=(HOUR, DAY))
    await record(world, 5, keep=(HOUR, DAY))
    assert await found(world) == await found(world, "hour") == []


@case
async def events_are_read_in_order_from_any_position_that_is_kept(world: World) -> None:
    assert (await world.backend.events(None)).position == 0
    for number in (1, 2):
        kept = tuple(KeptEvent(name="failed", body=b'{"n":%d}' % n) for n in (2 * number, 2 * number + 1))
        await world.backend.record(Recording(worker="w1", number=number, events=kept), now=world.now)
    page = await world.backend.events(0)
    assert [event.body for event in page.events] == [b'{"n":2}', b'{"n":3}', b'{"n":4}', b'{"n":5}']
    assert all(event.name == "failed" and event.at == world.now for event in page.events)
    positions = [event.position for event in page.events]
    assert positions == sorted(set(positions)) and page.position == positions[-1] and page.missed == 0
    second = await world.backend.events(positions[0], limit=2)
    assert [event.position for event in second.events] == positions[1:3] and second.position == positions[2]
    at_the_end = await world.backend.events(positions[-1])
    assert at_the_end.events == () and at_the_end.position == positions[-1]
    newest = await world.backend.events(None)
    assert newest.events == () and newest.position == positions[-1]


@case
async def only_the_newest_events_are_kept_and_the_missed_ones_are_counted(world: World) -> None:
    batch = 1000
    for number in range(EVENTS_KEPT_MAX // batch + 1):
        kept = tuple(KeptEvent(name="succeeded", body=b"{}") for _ in range(batch))
        await world.backend.record(Recording(worker="w1", number=number + 1, events=kept), now=world.now)
    page = await world.backend.events(0, limit=5)
    assert page.missed == batch
    assert [event.position for event in page.events] == list(range(batch + 1, batch + 6))


@case
async def an_operators_event_needs_no_number(world: World) -> None:
    paused = KeptEvent(name="paused", body=b'{"by":"ann"}')
    for _ in range(2):
        assert await world.backend.record(Recording(events=(paused,)), now=world.now)
    assert len((await world.backend.events(0)).events) == 2


@case
async def a_recording_touches_nothing_but_the_history(world: World) -> None:
    await world.put(State.RUNNING)
    async with world.unchanged("a recording"):
        await record(world, 1, ENDED, keep=(HOUR, DAY))


@case_for_each(("bury", "drop"))
async def an_expired_job_is_counted_by_the_store(world: World, on_expire: str) -> None:
    await world.enqueue_many(2, queue="mail", task="send", expires=1.0, on_expire=on_expire)
    await world.enqueue(queue="mail", task="other", expires=1.0, on_expire=on_expire)
    world.advance(2.0)
    await world.promote_all()
    shown = [(one.queue, one.task, one.outcome, one.count) for one in await found(world)]
    assert shown == [("mail", "other", "expired", 1), ("mail", "send", "expired", 2)]


@case
async def an_operators_cancel_and_bury_of_unstarted_jobs_are_counted_once(world: World) -> None:
    first, second = await world.enqueue_many(2, queue="mail", task="send")
    for _ in range(2):
        await world.backend.cancel(first, now=world.now)
    await world.backend.bury(second, "", now=world.now)
    running = await world.claim_one(await world.enqueue(queue="other"), queues=("other",))
    await world.backend.cancel(running.id, now=world.now)  # its worker counts it when it ends
    shown = [(one.queue, one.task, one.outcome, one.count) for one in await found(world)]
    assert shown == [("mail", "send", "cancelled", 1), ("mail", "send", "dead", 1)]
