"""Limits, rates and caps over many shards: their parts never exceed the whole, and they are shown as a whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.backends.sharded.divide import count_share, limit_share, rate_share
from holdfast.errors import BackendUnavailable, ConfigurationError
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.rates import NO_RATE, UNLIMITED, Rate, allowed, charged
from holdfast.records import ClaimRequest, Lease, NewJob, Override, QueueRule, TaskRule, WorkerRecord

from .shelves import NOW, Shelf

SHARDS = 3


def scene(test: Callable[[Shelf, ShardedBackend], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a store with a queue `mail` of three shards and a worker `w`."""

    def run() -> None:
        async def whole() -> None:
            shelf = Shelf()
            router = shelf.router()
            await router.open()
            await router.declare([QueueRule(name="mail", shards=SHARDS)], now=NOW)
            await router.register(WorkerRecord(id="w", lease_seconds=1e9, queues=("mail", "bulk")), now=NOW)
            await test(shelf, router)

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def jobs(number: int, task: str = "work", queue: str = "mail") -> list[NewJob]:
    return [NewJob(id=f"{queue}-{task}-{n:03}", task=task, queue=queue) for n in range(number)]


async def claimed(router: ShardedBackend, call: int, most: int = 50, at: float = NOW, **caps: int) -> list[Lease]:
    request = ClaimRequest(worker="w", call=call, queues=("mail", "bulk"), most=most, most_by_task=caps)
    return list((await router.claim(request, now=at)).leases)


async def end(router: ShardedBackend, leases: list[Lease]) -> None:
    ends = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED) for lease in leases]
    await router.settle(ends, now=NOW)


# ---------------------------------------------------------------------- the parts


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_the_parts_of_a_limit_add_up_to_it(shards: int) -> None:
    for limit in range(shards, 40):
        parts = [limit_share(limit, shards, place) or 0 for place in range(shards)]
        assert sum(parts) == limit and max(parts) - min(parts) <= 1
    assert limit_share(None, shards, 0) is None and limit_share(UNLIMITED, shards, 0) == UNLIMITED


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_what_the_shards_keep_is_not_less_than_what_is_to_be_kept(shards: int) -> None:
    for count in range(30):
        assert count <= (count_share(count, shards) or 0) * shards < count + shards
    assert count_share(None, shards) is None


def most_in_a_window(rate: Rate, shards: int, windows: int = 4) -> int:
    """The most starts in any window of the rate, where every shard always has jobs and is asked all the time."""
    steps = 256
    starts: list[int] = []
    spent = [0.0] * shards
    for step in range(windows * steps):
        now = NOW + step * rate.seconds / steps
        started = 0
        for place in range(shards):
            part = rate_share(rate, shards, place)
            assert part is not None
            number = allowed(part, spent[place], now)
            if number:
                spent[place] = charged(part, spent[place], now, number)
            started += number
        starts.append(started)
    return max(sum(starts[n : n + steps]) for n in range(len(starts) - steps + 1))


@pytest.mark.parametrize("shards", [2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8, 20, 100, 1000])
def test_the_parts_of_a_rate_never_start_more_than_it_allows(count: int, shards: int) -> None:
    seen = most_in_a_window(Rate(count, 64.0), shards)
    if count >= shards:
        assert 0.9 * count - shards <= seen <= count
    else:  # a rate below one per shard and window: each shard may start its one in the same window
        assert seen <= shards <= count + shards - 1


@pytest.mark.parametrize("burst", [1, 2, 5, 9])
def test_a_burst_is_divided_too(burst: int) -> None:
    assert most_in_a_window(Rate(12, 64.0, burst), 3) <= 12 + max(burst, 3) - 1


def test_a_slow_rate_is_as_slow_over_all_shards() -> None:
    parts = [rate_share(Rate(1, 3600.0), 4, place) for place in range(4)]
    assert parts == [Rate(1, 4 * 3600.0)] * 4
    assert rate_share(NO_RATE, 4, 0) == NO_RATE


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize("kind", ["queue", "task"])
def test_no_more_run_than_the_limit_and_all_of_it_is_used(kind: str) -> None:
    @scene
    async def test(shelf: Shelf, router: ShardedBackend) -> None:
        await router.enqueue(jobs(60), now=NOW)
        if kind == "queue":
            await router.declare([QueueRule(name="mail", shards=SHARDS, limit=7)], now=NOW)
        else:
            await router.declare([], [TaskRule(name="work", limit=7)], now=NOW)
        first = await claimed(router, 1)
        assert len(first) == 7
        assert not await claimed(router, 2)
        await end(router, first[:3])
        assert len(await claimed(router, 3)) == 3
        word: dict[str, Any] = {"queue": "mail"} if kind == "queue" else {"task": "work"}
        await router.limit(Override(**word, limit=11), now=NOW)
        assert len(await claimed(router, 4)) == 4
        await router.limit(Override(**word, limit=UNLIMITED), now=NOW)
        assert len(await claimed(router, 5)) == 46

    test()


@scene
async def test_limits_and_rates_are_shown_as_they_were_said(shelf: Shelf, router: ShardedBackend) -> None:
    rule = QueueRule(name="mail", shards=SHARDS, limit=7, rate=Rate(10, 60.0))
    task = TaskRule(name="work", limit=4, rate=Rate(5, 1.0), retain_count=10, retain_dead_count=2)
    await router.declare([rule], [task], now=NOW)
    await router.enqueue(jobs(30), now=NOW)
    await router.limit(Override(queue="mail", limit=9), now=NOW)
    await router.limit(Override(task="work", rate=Rate(8, 1.0)), now=NOW)
    leases = await claimed(router, 1)
    [mail] = await router.queues()
    assert (mail.limit, mail.rate, mail.override) == (
        7,
        rule.rate,
        Override(queue="mail", limit=9, rate=None, apart=None, weight=None),
    )
    assert mail.counts == {"ready": 30 - len(leases), "running": len(leases)} and leases
    assert mail.flow is not None and mail.flow.spent_until > NOW
    [work] = await router.tasks()
    assert (work.rule, work.declared, work.running) == (task, True, len(leases))
    assert work.override == Override(task="work", limit=None, rate=Rate(8, 1.0), apart=None, weight=None)
    assert work.flow is not None and work.flow.spent_until > NOW
    tables = (await router.dump()).tables
    assert [row["limit"] for row in tables["queues"]] == [7] and [row["limit"] for row in tables["tasks"]] == [4]
    assert [(row["queue"], row["task"]) for row in tables["flows"]] == [(None, "work"), ("mail", None)]


@scene
async def test_a_limit_below_the_number_of_shards_is_refused(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(9), now=NOW)
    before = shelf.page.text
    with pytest.raises(ConfigurationError, match="queue 'mail' is divided among 3 shards"):
        await router.declare([QueueRule(name="mail", shards=SHARDS, limit=2)], now=NOW)
    good = QueueRule(name="other", limit=1)
    with pytest.raises(ConfigurationError, match="task 'work' is divided among 3 shards"):
        await router.declare([good], [TaskRule(name="work", limit=2)], now=NOW)
    with pytest.raises(ConfigurationError, match="lower shards="):
        await router.limit(Override(queue="mail", limit=2), now=NOW)
    with pytest.raises(ConfigurationError, match="lower shards="):
        await router.limit(Override(task="work", limit=1), now=NOW)
    assert shelf.page.text == before and [record.name for record in await router.queues()] == ["mail"]
    assert len(await claimed(router, 1)) == 9


@scene
async def test_a_task_may_not_go_where_its_limit_does_not_reach(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", limit=3)], now=NOW)
    await router.enqueue(jobs(9), now=NOW)
    with pytest.raises(ConfigurationError, match="task 'work' is divided among 4 shards"):
        await router.enqueue(jobs(1, queue="bulk"), now=NOW)
    assert "bulk" not in await router.count()
    await router.enqueue(jobs(1, task="other", queue="bulk"), now=NOW)  # nobody else is concerned
    await router.limit(Override(task="work", limit=4), now=NOW)
    with pytest.raises(ConfigurationError):  # once it is reset, the declared one would be too small
        await router.enqueue(jobs(1, queue="bulk"), now=NOW)


@scene
async def test_a_queue_gets_no_more_shards_than_its_limits_reach(shelf: Shelf, router: ShardedBackend) -> None:
    await router.limit(Override(queue="mail", limit=4), now=NOW)
    with pytest.raises(ConfigurationError, match="divided among 5 shards"):
        await router.declare([QueueRule(name="mail", shards=5)], now=NOW)
    await router.limit(Override(queue="mail", limit=None), now=NOW)
    await router.declare([QueueRule(name="mail", shards=5)], now=NOW)


@scene
async def test_a_task_that_goes_into_another_queue_is_divided_anew(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", limit=8)], now=NOW)
    await router.enqueue(jobs(40), now=NOW)
    assert [shelf.shards[f"mail:{n}"].store._store.task_limit("work") for n in range(3)] == [3, 3, 2]
    await router.enqueue(jobs(40, queue="bulk"), now=NOW)
    places = ("mail:0", "mail:1", "mail:2", "bulk:0")
    assert [shelf.shards[name].store._store.task_limit("work") for name in places] == [2, 2, 2, 2]
    leases = await claimed(router, 1)
    assert Counter(lease.queue for lease in leases) == {"mail": 6, "bulk": 2}


@scene
async def test_with_a_new_number_of_shards_a_task_is_divided_anew(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([QueueRule(name="bulk")], [TaskRule(name="work", limit=10)], now=NOW)
    await router.enqueue(jobs(20), now=NOW)
    await router.enqueue(jobs(1, queue="bulk"), now=NOW)
    await router.cancel("bulk-work-000", now=NOW)
    await router.prune(older_than=600.0, now=NOW + 601)
    await router.declare([QueueRule(name="bulk", shards=2)], now=NOW)
    places = ("mail:0", "mail:1", "mail:2", "bulk:0", "bulk:1")
    assert [shelf.shards[name].store._store.task_limit("work") for name in places] == [2] * 5


@scene
async def test_a_rule_that_is_declared_away_is_gone_from_every_shard(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", limit=3)], now=NOW)
    await router.enqueue(jobs(12), now=NOW)
    await router.limit(Override(task="work", limit=5), now=NOW)
    await router.declare([], [TaskRule(name="work")], now=NOW)
    assert len(await claimed(router, 1)) == 5
    await router.limit(Override(task="work", limit=None, rate=None), now=NOW)
    assert len(await claimed(router, 2)) == 7
    assert await router.tasks() == []


@scene
async def test_a_shard_out_of_reach_misses_a_limit_until_it_is_said_again(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(40), now=NOW)
    shelf.shards["mail:1"].mood = "down"
    for word in (Override(queue="mail", limit=3), Override(task="work", limit=3)):
        with pytest.raises(BackendUnavailable):
            await router.limit(word, now=NOW)
    shelf.shards["mail:1"].mood = "well"
    for word in (Override(queue="mail", limit=3), Override(task="work", limit=3)):
        await router.limit(word, now=NOW)
    assert len(await claimed(router, 1)) == 3


@scene
async def test_what_was_cut_short_is_told_by_the_next_process(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(40), now=NOW)
    shelf.shards["mail:1"].mood = "down"
    with pytest.raises(BackendUnavailable):
        await router.declare([], [TaskRule(name="work", limit=3)], now=NOW)
    shelf.shards["mail:1"].mood = "well"
    another = shelf.router()
    await another.open()
    assert len(await claimed(another, 1)) == 3


@scene
async def test_a_task_that_cannot_be_told_of_stores_nothing(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([QueueRule(name="bulk")], [TaskRule(name="work", limit=8)], now=NOW)
    await router.enqueue(jobs(9), now=NOW)
    shelf.shards["mail:1"].mood = "down"  # it would have to give a part of the limit away
    with pytest.raises(BackendUnavailable):
        await router.enqueue(jobs(1, queue="bulk"), now=NOW)
    assert not shelf.shards["bulk:0"].store._store.jobs
    shelf.shards["mail:1"].mood = "well"
    await router.enqueue(jobs(1, queue="bulk"), now=NOW)
    assert (await router.count())["bulk"] == {State.READY: 1}


# ---------------------------------------------------------------------- caps, slow-downs, keys


@scene
async def test_what_a_worker_may_hold_of_a_task_is_never_exceeded(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", apart=True), TaskRule(name="other", apart=True)], now=NOW)
    await router.enqueue([*jobs(40), *jobs(40, "other"), *jobs(40, "free")], now=NOW)
    await router.enqueue(jobs(40, queue="bulk"), now=NOW)
    for call, cap in enumerate((0, 1, 2, 5, 7), start=1):
        leases = await claimed(router, call, 30, work=cap, other=2)
        tasks = Counter(lease.task for lease in leases)
        assert (tasks["work"], tasks["other"], len(leases)) == (cap, 2, min(30, 40 + 2 + cap))
        await router.retire("w", now=NOW)
        await router.register(WorkerRecord(id="w", lease_seconds=1e9, queues=("mail", "bulk")), now=NOW)


@scene
async def test_one_free_slot_of_a_task_finds_its_job_in_any_shard(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", apart=True)], now=NOW)
    for call in range(1, 10):
        job = NewJob(id=f"job-{call}", task="work", queue="mail")
        await router.enqueue([job], now=NOW)
        leases = await claimed(router, call, 10, work=1)
        assert [lease.id for lease in leases] == [job.id]
        await end(router, leases)


@scene
async def test_a_slow_down_holds_in_every_shard(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(12), now=NOW)
    assert await router.slow_down("mail", 60.0, now=NOW) == NOW + 60.0
    assert await router.slow_down("mail", 5.0, now=NOW) == NOW + 60.0
    request = ClaimRequest(worker="w", call=1, queues=("mail",), most=50)
    held = await router.claim(request, now=NOW + 20.0)
    assert (held.leases, held.opens_in) == ((), 40.0)
    [mail] = await router.queues()
    assert mail.flow is not None and mail.flow.shut_until == NOW + 60.0
    assert len(await claimed(router, 2, at=NOW + 60.0)) == 12


@scene
async def test_a_claim_says_when_the_first_shard_opens(shelf: Shelf, router: ShardedBackend) -> None:
    await router.enqueue(jobs(30), now=NOW)
    await shelf.shards["mail:0"].store.slow_down("mail", 50.0, now=NOW)
    await shelf.shards["mail:2"].store.slow_down("mail", 20.0, now=NOW)
    request = ClaimRequest(worker="w", call=1, queues=("mail",), most=50)
    answer = await router.claim(request, now=NOW)
    assert answer.leases and answer.opens_in == 20.0
    assert (await router.claim(request, now=NOW)).opens_in == 20.0  # the same call once more


@scene
async def test_a_key_of_all_queues_is_refused_and_adds_no_queue(shelf: Shelf, router: ShardedBackend) -> None:
    wide = NewJob(id="j", task="work", queue="fresh", key="k", key_scope="global")
    with pytest.raises(ConfigurationError, match="5 shards"):
        await router.enqueue([wide], now=NOW)
    assert [record.name for record in await router.queues()] == ["mail"]
    alone = Shelf().router()
    await alone.enqueue([wide], now=NOW)
    with pytest.raises(ConfigurationError, match="2 shards"):
        await alone.enqueue([NewJob(id="i", task="work", queue="b", key="k", key_scope="global")], now=NOW)
    [answer] = await alone.enqueue([NewJob(id="i", task="work", queue="fresh", key="k", key_scope="global")], now=NOW)
    assert (answer.id, answer.created) == ("j", False)


@scene
async def test_a_task_keeps_as_many_jobs_as_its_rule_says_over_all_shards(shelf: Shelf, router: ShardedBackend) -> None:
    await router.declare([], [TaskRule(name="work", retain_count=6)], now=NOW)
    await router.enqueue(jobs(60), now=NOW)
    await end(router, await claimed(router, 1, 100))
    await router.prune(now=NOW + 3600.0)
    assert (await router.count())["mail"] == {State.SUCCEEDED: 6}
