"""Dependencies between shards: the flow is whole if a process dies between steps in two shards, or misses a reply.

Every scene is run once to count the calls that its router makes to shards, then once for each call and each fault: the
process dies before or after the call, the shard is down, or its reply is lost. Then another process sweeps and works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.sharded import dependencies
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.dependencies import DUE_AFTER_PARENTS
from holdfast.errors import (
    BackendUnavailable,
    ConfigurationError,
    JobNotFound,
    OutcomeUnknown,
    ParentNotFound,
    StateConflict,
)
from holdfast.inspection.audit import audit
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.records import Answer, ClaimRequest, JobQuery, Lease, NewJob, QueueRule, Seal, TaskRule, WorkerRecord
from holdfast.testing.conformance.soundness import sound

from ...reference.backend import ReferenceBackend
from .shelves import NOW, Moody, Shelf

QUEUES = ("mail", "bulk")
FAULTS = ("killed before", "killed after", "down", "reply lost")


class Killed(BaseException):
    """The process is dead."""


class Fuse:
    """Counts the calls of a process to shards, and makes one of them fail."""

    def __init__(self, fault: str = "", at: int = -1) -> None:
        self.fault, self.at, self.calls, self.dead = fault, at, 0, False

    async def burn(self, call: Callable[[], Awaitable[Any]], verb: str) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if self.dead or (number == self.at and self.fault == "killed before"):
            self.dead = True
            raise Killed
        if number == self.at and self.fault == "down":
            raise BackendUnavailable(f"{verb}: cut off by the test. Nothing to do.")
        answer = await call()
        if number == self.at and self.fault == "killed after":
            self.dead = True
            raise Killed
        if number == self.at and self.fault == "reply lost":
            raise OutcomeUnknown(verb)
        return answer


class Line:
    """A shard as a process with a fuse sees it."""

    def __init__(self, shard: Moody, fuse: Fuse) -> None:
        self._shard, self._fuse = shard, fuse

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._shard, verb)
        if not callable(real) or verb == "close":
            return real
        return lambda *args, **kwargs: self._fuse.burn(lambda: real(*args, **kwargs), verb)


def process(shelf: Shelf, fuse: Fuse) -> ShardedBackend:
    made: Any = lambda name, numbering: Line(shelf._shard(name, numbering), fuse)  # noqa: E731
    return ShardedBackend(shelf.page, made)


async def opened(shelf: Shelf, fault: str = "", at: int = -1) -> tuple[ShardedBackend, Fuse]:
    """Another process, with a fault at one of its calls after it has opened the store."""
    fuse = Fuse()
    router = process(shelf, fuse)
    await router.open()
    fuse.fault, fuse.at, fuse.calls = fault, at, 0
    return router, fuse


async def begun() -> tuple[Shelf, ShardedBackend]:
    """A store of two queues with three shards each, and a worker."""
    shelf = Shelf()
    router = process(shelf, Fuse())
    await router.open()
    await router.declare([QueueRule(name=queue, shards=3) for queue in QUEUES], now=NOW)
    await register(router, "first")
    return shelf, router


async def register(router: ShardedBackend, worker: str) -> None:
    await router.register(WorkerRecord(id=worker, lease_seconds=1e6, queues=QUEUES), now=NOW)


async def claimed(router: ShardedBackend, worker: str, call: int) -> list[Lease]:
    return list((await router.claim(ClaimRequest(worker=worker, call=call, queues=QUEUES, most=50), now=NOW)).leases)


def success(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED, value=b'"done"')


async def worked_off(router: ShardedBackend) -> list[str]:
    """Sweep and work until nothing is left; returns the jobs in the order in which they ran."""
    await register(router, "second")
    ran: list[str] = []
    for call in range(1, 40):
        while (await router.promote(now=NOW)).more:
            pass
        leases = await claimed(router, "second", call)
        if not leases:
            break
        ran += [lease.id for lease in leases]
        await router.settle([success(lease) for lease in leases], now=NOW)
    return ran


async def checked(router: ShardedBackend, when: str) -> None:
    await sound(router, when)
    assert not (await audit(router)).violations, when


def on_each_fault(scene: Callable[[str, int], Coroutine[Any, Any, int]], fault: str) -> None:
    """Run the scene once without a fault, then with the fault at each of the calls that were counted."""
    for at in range(asyncio.run(scene("", -1))):
        asyncio.run(scene(fault, at))


# ---------------------------------------------------------------------- enqueue

FLOW = (
    NewJob(id="a", task="work", queue="mail"),
    NewJob(id="b", task="work", queue="mail", group="g", after=("a",)),
    NewJob(id="c", task="work", queue="bulk", key="k", after=("a",)),
    NewJob(id="d", task="work", queue="mail", group="h", after=("b", "c")),
    NewJob(id="e", task="work", queue="bulk", after=("c", "d")),
)


def in_order(ran: list[str]) -> bool:
    return all(ran.index(parent) < ran.index(job.id) for job in FLOW for parent in job.after)


async def tried(call: Awaitable[Any]) -> bool:
    try:
        await call
    except (Killed, BackendUnavailable, OutcomeUnknown):
        return False
    return True


@pytest.mark.parametrize("page", [1, dependencies.PAGE], ids=["small pages", "one page"])
@pytest.mark.parametrize("repeats", [False, True], ids=["once", "repeated"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_flow_is_stored_whole_or_not_at_all(
    fault: str, repeats: bool, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "PAGE", page)

    async def scene(fault: str, at: int) -> int:
        shelf, _ = await begun()
        dying, fuse = await opened(shelf, fault, at)
        stored = await tried(dying.enqueue(FLOW, now=NOW))
        other, _ = await opened(shelf)
        if repeats:
            await other.enqueue(FLOW, now=NOW)
        ran = await worked_off(other)
        assert sorted(ran) == ([job.id for job in FLOW] if stored or repeats or ran else [])
        assert in_order(ran) if ran else not await other.find(JobQuery())
        await checked(other, f"{fault} at {at}")
        return fuse.calls

    on_each_fault(scene, fault)


def test_the_flow_of_these_tests_spans_shards() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        await router.enqueue(FLOW, now=NOW)
        assert len({id(shelf.holder(job.id)) for job in FLOW}) >= 3
        answers = await router.enqueue(FLOW, now=NOW)
        assert [answer.created for answer in answers] == [False] * len(FLOW)

    asyncio.run(whole())


@pytest.mark.parametrize("page", [1, dependencies.PAGE], ids=["small pages", "one page"])
def test_a_child_elsewhere_of_a_call_that_was_kept_waits_for_the_job_that_holds_its_key(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "PAGE", page)

    async def whole() -> None:
        _, router = await begun()
        await router.enqueue([NewJob(id="holder", task="work", queue="bulk", key="k")], now=NOW)
        answers = await router.enqueue(FLOW, now=NOW)
        assert [answer.id for answer in answers] == ["a", "b", "holder", "d", "e"]
        assert [one.id for one in (await router.relatives("e")).parents] == ["d", "holder"]
        ran = await worked_off(router)
        assert sorted(ran) == ["a", "b", "d", "e", "holder"] and ran.index("d") > ran.index("holder")
        await checked(router, "a call was kept")

    asyncio.run(whole())


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("fault", FAULTS)
def test_the_end_of_a_parent_reaches_its_children_once(fault: str) -> None:
    async def scene(fault: str, at: int) -> int:
        shelf, router = await begun()
        await router.enqueue(FLOW, now=NOW)
        [lease] = await claimed(router, "first", 1)
        dying, fuse = await opened(shelf, fault, at)
        ended = await tried(dying.settle([success(lease)], now=NOW))
        other, _ = await opened(shelf)
        if not ended:
            assert (await other.settle([success(lease)], now=NOW))[0] in (Answer.OK, Answer.LOST)
        ran = ["a", *await worked_off(other)]
        assert sorted(ran) == [job.id for job in FLOW] and in_order(ran)
        await checked(other, f"{fault} at {at}")
        return fuse.calls

    on_each_fault(scene, fault)


@pytest.mark.parametrize("policy", ["bury", "cancel", "run"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_death_and_the_revival_of_a_parent_reach_its_children(fault: str, policy: Any) -> None:
    parent = NewJob(id="p", task="work", queue="mail", due_at=NOW + 9)
    child = NewJob(id="x", task="work", queue="bulk", after=("p",), on_parent_failure=policy)
    wanted = {"bury": State.DEAD, "cancel": State.CANCELLED, "run": State.READY}[policy]

    async def scene(fault: str, at: int) -> int:
        shelf, router = await begun()
        await router.enqueue([parent, child], now=NOW)
        dying, fuse = await opened(shelf, fault, at)
        died = await tried(dying.bury("p", "no use", now=NOW))
        other, _ = await opened(shelf)
        if not died:
            await tried_again(other.bury("p", "no use", now=NOW))
        await other.promote(now=NOW)
        await other.promote(now=NOW)
        assert await state_of(other, "x") is wanted, f"{fault} at {at}"
        await checked(other, f"dead, {fault} at {at}")
        if policy != "run":
            await other.revive("p", now=NOW)
            job = await other.get("x")
            assert job is not None and (job.state, job.due_at) == (State.SCHEDULED, DUE_AFTER_PARENTS)
        assert sorted(await worked_off(other)) == ["p", "x"] if policy != "run" else ["x"]
        await checked(other, f"{fault} at {at}")
        return fuse.calls

    on_each_fault(scene, fault)


async def tried_again(call: Awaitable[Any]) -> None:
    try:
        await call
    except StateConflict:
        return


async def state_of(router: ShardedBackend, job_id: str) -> State | None:
    job = await router.get(job_id)
    return None if job is None else job.state


# ---------------------------------------------------------------------- children and batches

MEMBER = NewJob(id="m", task="work", queue="mail")
JOIN = NewJob(id="j", task="work", queue="bulk", after=("m",), on_parent_failure="run")
MORE = (
    NewJob(id="n1", task="work", queue="mail", group="g", before="j"),
    NewJob(id="n2", task="work", queue="bulk", group="h", before="j"),
    NewJob(id="n3", task="work", queue="mail", group="i", after=("m", "n1")),
)


@pytest.mark.parametrize("fault", FAULTS)
def test_children_come_with_the_end_of_their_parent_and_a_batch_waits_for_them(fault: str) -> None:
    async def scene(fault: str, at: int) -> int:
        shelf, router = await begun()
        await router.enqueue([MEMBER, JOIN], now=NOW)
        [lease] = await claimed(router, "first", 1)
        dying, fuse = await opened(shelf, fault, at)
        ended = await tried(dying.settle_with(success(lease), MORE, now=NOW))
        other, _ = await opened(shelf)
        if not ended:
            assert await other.settle_with(success(lease), MORE, now=NOW) in (Answer.OK, Answer.LOST)
        ran = await worked_off(other)
        assert sorted(ran) == ["j", "n1", "n2", "n3"], f"{fault} at {at}: {ran}"
        assert ran.index("j") > max(ran.index("n1"), ran.index("n2")) and ran.index("n3") > ran.index("n1")
        await checked(other, f"{fault} at {at}")
        return fuse.calls

    on_each_fault(scene, fault)


def test_a_batch_that_is_over_takes_no_member_and_nothing_is_stored() -> None:
    async def whole() -> None:
        _, router = await begun()
        await router.enqueue([MEMBER, JOIN], now=NOW)
        await worked_off(router)
        before = await router.dump()
        with pytest.raises(StateConflict):
            await router.enqueue(MORE[:1], now=NOW)
        with pytest.raises(JobNotFound):
            await router.enqueue([NewJob(id="z", task="work", queue="mail", before="nobody")], now=NOW)
        with pytest.raises(ParentNotFound):
            await router.enqueue([*FLOW, NewJob(id="z", task="work", queue="mail", after=("nobody",))], now=NOW)
        assert await router.dump() == before

    asyncio.run(whole())


# ---------------------------------------------------------------------- parents that are removed once they succeed


async def removed_in_their_shards(shelf: Shelf, call: int) -> list[str]:
    """Claim what is there, and let it succeed and go, by a process that delivers nothing. Returns what ran."""
    ran: list[str] = []
    for shard in shelf.shards.values():
        worker = WorkerRecord(id="hasty", lease_seconds=1e6, queues=QUEUES)
        await shard.store.register(worker, now=NOW)
        request = ClaimRequest(worker=worker.id, call=call, queues=QUEUES, most=50)
        leases = (await shard.store.claim(request, now=NOW)).leases
        ends = [replace(success(lease), retain=-1.0) for lease in leases]
        assert {Answer.OK} >= set(await shard.store.settle(ends, now=NOW))
        ran += [lease.id for lease in leases]
    return ran


@pytest.mark.parametrize("page", [1, dependencies.PAGE], ids=["small pages", "one page"])
@pytest.mark.parametrize("together", [False, True], ids=["stored before", "stored with its child"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_parent_that_is_to_be_removed_stays_until_its_child_elsewhere_has_heard(
    fault: str, together: bool, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents succeed as soon as the enqueue has ended or was cut off, before anybody has delivered the rest."""
    monkeypatch.setattr(dependencies, "PAGE", page)
    parents = [NewJob(id=f"p{n}", task="work", queue="mail") for n in range(4)]
    children = [NewJob(id=f"x{n}", task="work", queue="bulk", after=(f"p{n}",)) for n in range(4)]
    flow = [*parents, *children, NewJob(id="z", task="work", queue="mail", after=tuple(job.id for job in children))]

    async def scene(fault: str, at: int) -> int:
        shelf, router = await begun()
        if not together:
            await router.enqueue(parents, now=NOW)
        dying, fuse = await opened(shelf, fault, at)
        stored = await tried(dying.enqueue(flow if together else flow[len(parents) :], now=NOW))
        other, _ = await opened(shelf)
        ran = []
        for call in range(1, 9):
            ran += await removed_in_their_shards(shelf, call)
            while (await other.promote(now=NOW)).more:
                pass
        whole = sorted(job.id for job in flow)
        accepted = stored or "z" in ran or await other.get("z") is not None
        assert sorted(ran) == (whole if accepted else [] if together else [job.id for job in parents]), (
            f"{fault} at {at}"
        )
        await checked(other, f"{fault} at {at}")
        for late in range(1, 9):
            await other.prune(now=NOW + 2e5 * late)
            await other.promote(now=NOW + 2e5 * late)
        assert await other.find(JobQuery()) == [], "nothing keeps them once they are not needed"
        return fuse.calls

    on_each_fault(scene, fault)


# ---------------------------------------------------------------------- silence


def test_a_silent_shard_delays_only_what_is_meant_for_it() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        parent = NewJob(id="p", task="work", queue="mail")
        children = [NewJob(id=f"x{n}", task="work", queue="bulk", after=("p",)) for n in range(9)]
        await router.enqueue([parent, *children], now=NOW)
        [lease] = await claimed(router, "first", 1)
        silent = shelf.holder("x0")
        silent.mood = "down"
        await router.settle([success(lease)], now=NOW)
        there = {job.id for job in children if shelf.holder(job.id) is silent}
        told = {
            row.id for shard in shelf.shards.values() for row in shard.store._store.jobs.values() if row.due_at <= NOW
        }
        assert told - {"p"} == {job.id for job in children} - there
        silent.mood = "well"
        assert sorted(await worked_off(router)) == [job.id for job in children]

    asyncio.run(whole())


# ---------------------------------------------------------------------- copies of dead jobs


@pytest.mark.parametrize("queue", ["bulk", "undeclared"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_death_leaves_one_copy_in_another_shard(fault: str, queue: str) -> None:
    async def scene(fault: str, at: int) -> int:
        shelf, router = await begun()
        await router.declare([QueueRule(name="mail", shards=3, dead_queue=queue)], now=NOW)
        jobs = [NewJob(id=f"{n}", task="work", queue="mail", args=b"[%d]" % n) for n in range(4)]
        await router.enqueue(jobs, now=NOW)
        ends = [
            Settlement(id=lease.id, token=lease.token, ending=Ending.BURIED)
            for lease in await claimed(router, "first", 1)
        ]
        dying, fuse = await opened(shelf, fault, at)
        await tried(dying.settle(ends, now=NOW))
        other, _ = await opened(shelf)
        assert set(await other.settle(ends, now=NOW)) <= {Answer.OK, Answer.LOST}  # of those that were not heard
        while (await other.promote(now=NOW)).more:
            pass
        copies = await other.find(JobQuery(queue=queue))
        assert sorted(copy.args for copy in copies) == [job.args for job in jobs]
        assert {copy.state for copy in copies} == {State.READY}
        await checked(other, f"{fault} at {at}")
        return fuse.calls

    on_each_fault(scene, fault)


def test_a_task_whose_limit_is_too_small_for_both_queues_is_refused_early() -> None:
    async def whole() -> None:
        _, router = await begun()
        small = TaskRule(name="work", limit=3)
        await router.declare([], [small], now=NOW)
        await router.enqueue([NewJob(id="a", task="work", queue="mail")], now=NOW)
        with pytest.raises(ConfigurationError, match="task 'work'"):
            await router.declare([QueueRule(name="mail", shards=3, dead_queue="bulk")], now=NOW)
        await router.declare([], [TaskRule(name="work", limit=6)], now=NOW)
        await router.declare([QueueRule(name="mail", shards=3, dead_queue="bulk")], now=NOW)
        with pytest.raises(ConfigurationError, match="task 'work'"):
            await router.declare([], [small], now=NOW)
        await router.declare([], [TaskRule(name="late", limit=2)], now=NOW)
        with pytest.raises(ConfigurationError, match="task 'late'"):
            await router.enqueue([NewJob(id="b", task="late", queue="mail")], now=NOW)

    asyncio.run(whole())


def buried(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, ending=Ending.BURIED, failed=True, failure=Failure(text="x"))


def test_news_pass_a_copy_whose_shard_is_down() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        await router.declare([QueueRule(name="one", dead_queue="dead"), QueueRule(name="two")], now=NOW)
        await router.enqueue([NewJob(id="parent", task="work", queue="one")], now=NOW)
        await router.enqueue([NewJob(id="child", task="work", queue="two", after=("parent",))], now=NOW)
        await router.enqueue([NewJob(id="dies", task="work", queue="one")], now=NOW)
        request = ClaimRequest(worker="first", call=1, queues=("one", "two"), most=9)
        leases = {lease.id: lease for lease in (await router.claim(request, now=NOW)).leases}
        for name, shard in shelf.shards.items():
            if name.startswith("dead"):
                shard.mood = "down"
        await router.settle([buried(leases["dies"])], now=NOW)
        await router.settle([success(leases["parent"])], now=NOW)
        await router.promote(now=NOW)
        again = await router.claim(replace(request, call=2), now=NOW)
        assert [lease.id for lease in again.leases] == ["child"]

    asyncio.run(whole())


def test_a_dead_queue_that_another_process_has_just_declared_is_looked_up() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        await router.declare([QueueRule(name="one"), QueueRule(name="two", dead_queue="three")], now=NOW)
        await router.enqueue([NewJob(id="dies", task="work", queue="one")], now=NOW)
        request = ClaimRequest(worker="first", call=1, queues=("one",), most=9)
        [lease] = (await router.claim(request, now=NOW)).leases
        rival = process(shelf, Fuse())
        await rival.open()
        await rival.declare([QueueRule(name="one", dead_queue="dead")], now=NOW)
        await router.exchange([buried(lease)], [], replace(request, call=2), now=NOW)
        assert len(await router.find(JobQuery(queue="dead"))) == 1

    asyncio.run(whole())


def test_a_copy_obeys_the_limit_of_its_task_from_the_first_on() -> None:
    async def whole() -> None:
        _, router = await begun()
        await router.declare([QueueRule(name="one", dead_queue="two")], [TaskRule(name="work", limit=2)], now=NOW)
        await router.enqueue([NewJob(id=f"{n}", task="work", queue="one") for n in range(4)], now=NOW)
        for n in range(4):
            await router.bury(f"{n}", "", now=NOW)
        request = ClaimRequest(worker="first", call=1, queues=("one", "two"), most=9)
        assert len((await router.claim(request, now=NOW)).leases) == 1  # its part of the limit
        assert len(await router.find(JobQuery(queue="two"))) == 4

    asyncio.run(whole())


def test_a_store_without_dependencies_between_shards_never_looks_for_notes() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        await router.enqueue([NewJob(id=f"{n}", task="work", queue="mail") for n in range(20)], now=NOW)
        await worked_off(router)
        await router.prune(now=NOW + 1e6)
        assert "outbox" not in {verb for shard in shelf.shards.values() for verb in shard.calls}

    asyncio.run(whole())


# ---------------------------------------------------------------------- results, prune, delete


def test_results_of_parents_elsewhere_are_read_and_the_parents_kept_while_they_are_needed() -> None:
    async def whole() -> None:
        _, router = await begun()
        parents = [NewJob(id=f"p{n}", task=f"task-{n}", queue="mail") for n in range(4)]
        child = NewJob(id="x", task="work", queue="bulk", delay=1e6, after=tuple(job.id for job in parents))
        await router.enqueue([*parents, child], now=NOW)
        await worked_off(router)
        for late in range(1, 5):
            await router.prune(now=NOW + 2e5 * late)
            await router.promote(now=NOW + 2e5 * late)
        found = await router.relatives("x", values=True)
        assert [(one.id, one.task, one.state, one.value) for one in found.parents] == [
            (f"p{n}", f"task-{n}", State.SUCCEEDED, b'"done"') for n in range(4)
        ]
        assert [one.id for one in (await router.relatives("p0")).children] == ["x"]
        await router.cancel("x", now=NOW)
        for late in range(5, 9):
            await router.prune(now=NOW + 2e5 * late)
            await router.promote(now=NOW + 2e5 * late)
        assert await router.find(JobQuery()) == []
        await checked(router, "all are gone")

    asyncio.run(whole())


def test_a_parent_is_deleted_once_no_job_elsewhere_waits_for_it() -> None:
    async def whole() -> None:
        _, router = await begun()
        parent = NewJob(id="p", task="work", queue="mail")
        child = NewJob(id="x", task="work", queue="bulk", after=("p",))
        await router.enqueue([parent, child], now=NOW)
        with pytest.raises(StateConflict, match="x"):
            await router.delete("p", now=NOW)
        await router.cancel("x", now=NOW)
        await router.delete("p", now=NOW)
        assert await router.get("p") is None
        assert (await router.relatives("x")).parents == ()
        await checked(router, "the parent is gone")

    asyncio.run(whole())


@pytest.mark.parametrize("queues", [("mail", "bulk", "bulk"), ("bulk", "mail", "bulk")])
def test_a_parent_is_not_deleted_while_its_accepted_child_is_still_a_note(queues: tuple[str, str, str]) -> None:
    """The process that accepted the child dies or pauses at any moment; another one is told to delete the parent."""
    first, parents, children = queues
    flow = [
        NewJob(id="first", task="work", queue=first),
        NewJob(id="p", task="work", queue=parents),
        NewJob(id="x", task="work", queue=children, after=("first", "p")),
    ]

    async def scene(fault: str, at: int) -> int:
        shelf, _ = await begun()
        dying, fuse = await opened(shelf, fault, at)
        await tried(dying.enqueue(flow, now=NOW))
        other, _ = await opened(shelf)
        if await other.get("p") is not None:
            with pytest.raises(StateConflict, match="x"):
                await other.delete("p", now=NOW)
            await checked(other, f"{fault} at {at}")
            child = await other.get("x")
            assert child is not None and child.state is State.SCHEDULED, f"{fault} at {at}"
        return fuse.calls

    async def scenes() -> None:
        for fault in FAULTS:
            for at in range(await scene("", -1)):
                await scene(fault, at)

    asyncio.run(scenes())


def test_audit_finds_an_edge_to_a_parent_that_is_gone() -> None:
    async def whole() -> None:
        shelf, router = await begun()
        parent = NewJob(id="p", task="work", queue="mail")
        await router.enqueue([parent, NewJob(id="x", task="work", queue="bulk", after=("p",))], now=NOW)
        store = shelf.holder("p").store._store
        store.remove(store.jobs["p"])
        assert "there is no job p" in " ".join(found.text for found in (await audit(router)).violations)

    asyncio.run(whole())


# ---------------------------------------------------------------------- moving


async def moved(source: Any, target: Any) -> None:
    """Move a store that nobody uses."""
    old, new = (Seal(move="m", role=role, other="x") for role in ("source", "target"))
    assert await source.seal(old, instead_of=None)
    assert await target.seal(new, instead_of=None)
    for part in ("rules", "jobs", "edges", "steps", "letters"):
        after: str | None = ""
        while after is not None:
            shipment = await source.export(part, after, limit=2)
            await target.carry("m", shipment)
            after = shipment.after
    there = await target.sealed()
    assert await target.seal(replace(there, stage="moved"), instead_of=there)


@pytest.mark.parametrize("way", ["in", "out", "across"])
def test_a_flow_over_shards_moves_into_out_of_and_between_clusters(way: str) -> None:
    async def whole() -> None:
        _, cluster = await begun()
        source: Any = ReferenceBackend() if way == "in" else cluster
        target: Any = ReferenceBackend() if way == "out" else (await begun())[1]
        await source.enqueue(FLOW, now=NOW)
        await register(source, "first")
        [lease] = await claimed(source, "first", 1)
        await source.settle([success(lease)], now=NOW)
        await source.retire("first", now=NOW)
        await moved(source, target)
        await checked(target, way)
        assert await target.relatives("e") == await source.relatives("e")
        ran = ["a", *await worked_off(target)]
        assert sorted(ran) == [job.id for job in FLOW] and in_order(ran)
        await checked(target, f"{way}, at the end")

    asyncio.run(whole())
