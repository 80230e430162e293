"""Reading or moving page by page gives the same as in one piece: the memory store must return the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import product

import pytest

from holdfast.backends.contract import Backend
from holdfast.backends.redis import prune, read, scan
from holdfast.backends.redis.assembler import load_scripts
from holdfast.backends.redis.backend import RedisBackend
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.rates import UNLIMITED, Rate
from holdfast.records import (
    ClaimRequest,
    JobQuery,
    LetterQuery,
    NewJob,
    Override,
    Pause,
    QueueRule,
    TaskRule,
    WorkerRecord,
)
from holdfast.testing.conformance.soundness import sound

from ...reference.backend import ReferenceBackend

Make = Callable[..., RedisBackend]
NOW = 2_000_000_000.0
QUEUES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE", 7)
    monkeypatch.setattr(scan, "PAGE", 7)
    monkeypatch.setattr(scan, "FEW_MAX", 25)
    monkeypatch.setattr(read, "GROUPS_PAGE", 7)
    monkeypatch.setattr(RedisBackend, "rule_step_max", 3)
    monkeypatch.setattr(prune, "PRUNE_PAGE", 5)


async def filled(backend: Backend) -> None:
    """Jobs of all states in three queues, ended in another order than they came."""
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=1e9), now=NOW)
    jobs = [
        NewJob(
            id=f"{queue}{n:03d}",
            task=f"t{n % 3}",
            queue=queue,
            group=f"g{n % 4}" if n % 2 else None,
            delay=1000.0 if n % 5 == 0 else None,
        )
        for n, queue in product(range(40), QUEUES)
    ]
    await backend.enqueue(jobs, now=NOW)
    endings = (Ending.SUCCEEDED, Ending.BURIED, Ending.CANCELLED, Ending.SUCCEEDED)
    for call in range(1, 8):
        request = ClaimRequest(worker="w", call=call, queues=QUEUES[:: (-1) ** call], most=12)
        leases = sorted((await backend.claim(request, now=NOW + call)).leases, key=lambda lease: lease.id)
        settled = [
            Settlement(id=lease.id, token=lease.token, ending=endings[number % 4], reason="failed")
            for number, lease in enumerate(leases[::-1])
        ]
        await backend.settle(settled if call < 7 else settled[:3], now=NOW + call)


def both(make: Make, compare: Callable[[Backend, Backend], object]) -> None:
    async def run() -> None:
        here, model = make(), ReferenceBackend()
        await filled(here)
        await filled(model)
        await compare(here, model)  # type: ignore[misc]
        await sound(here, "page by page")
        await here.close()

    asyncio.run(run())


def test_find_answers_alike_for_every_query(make: Make) -> None:
    states = [(), *((state,) for state in State), (State.SUCCEEDED, State.DEAD), (State.READY, State.CANCELLED)]
    narrow = [{}, {"queue": "b"}, {"task": "t1"}, {"queue": "c", "group": "g1"}, {"id_prefix": "a01"}, {"worker": "w"}]

    async def compare(here: Backend, model: Backend) -> None:
        for some, fields, limit in product(states, narrow, (1, 4, 200)):
            query = JobQuery(states=some, limit=limit, **fields)  # type: ignore[arg-type]
            found = await here.find(query)
            assert [job.id for job in found] == [job.id for job in await model.find(query)], query
            if found:
                following = JobQuery(states=some, limit=limit, before=found[-1].seq, **fields)  # type: ignore[arg-type]
                [last] = [job for job in await model.find(JobQuery(limit=1000)) if job.id == found[-1].id]
                expected = JobQuery(states=some, limit=limit, before=last.seq, **fields)  # type: ignore[arg-type]
                page = [job.id for job in await here.find(following)]
                assert page == [job.id for job in await model.find(expected)], following

    both(make, compare)


def test_letters_groups_queues_and_counts_are_alike(make: Make) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        for limit in (1, 5, 1000):
            wanted = [letter.id for letter in await model.letters(LetterQuery(limit=limit))]
            assert [letter.id for letter in await here.letters(LetterQuery(limit=limit))] == wanted
            for queue in (None, "b"):
                assert await here.groups(queue, limit=limit) == await model.groups(queue, limit=limit)
        assert await here.queues() == await model.queues()
        assert await here.count() == await model.count()

    both(make, compare)


def test_a_group_that_its_rate_keeps_waiting_is_found_behind_many_of_other_queues_and_without_listing_groups(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_groups(*_: object, **__: object) -> None:
        raise AssertionError("it lists groups")

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e9), now=NOW)
        rated = {"group_order": "relaxed", "group_limit": 2, "group_rate": Rate(1, 60.0)}
        rules = [QueueRule(name=name, **rated) for name in ("aa", "b")]  # type: ignore[arg-type]
        await backend.declare(rules, now=NOW)
        places = [("aa", f"g{n}") for n in range(20)] + [("b", "last")]
        jobs = [
            NewJob(id=f"{queue}{name}{n}", task="t", queue=queue, group=name) for queue, name in places for n in "12"
        ]
        await backend.enqueue(jobs, now=NOW)
        monkeypatch.setattr(read.Reader, "groups", no_groups)
        assert not await backend.waking(["aa", "b"])
        await backend.claim(ClaimRequest(worker="w", call=1, queues=("aa",), most=50), now=NOW)
        assert [await backend.waking(queues) for queues in (["b"], ["a"], ["aa"], [])] == [False, False, True, False]
        await backend.claim(ClaimRequest(worker="w", call=2, queues=("b",), most=50), now=NOW + 1)
        assert await backend.waking(["b"])
        await backend.close()

    asyncio.run(run())


def test_a_paused_task_is_parked_and_comes_back(make: Make) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        for backend in (here, model):
            await backend.pause(Pause(task="t1"), now=NOW + 20)
        assert await lanes(here) == await lanes(model)
        for backend in (here, model):
            assert await backend.resume(Pause(task="t1"), now=NOW + 21)
        assert await lanes(here) == await lanes(model)

    both(make, compare)


async def lanes(backend: Backend) -> list[tuple[str, int]]:
    jobs = (await backend.dump()).tables["jobs"]
    return sorted((job["id"], job["lane"]) for job in jobs if job["state"] == "ready")


def test_a_task_gets_a_lane_of_its_own_and_loses_it(make: Make) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        for said in ({"limit": 2}, {"limit": UNLIMITED}, {"limit": None, "rate": Rate(1, 60.0)}, {"rate": None}):
            for backend in (here, model):
                await backend.limit(Override(task="t1", **said), now=NOW + 20)
            assert await lanes(here) == await lanes(model), said
        for rule in (TaskRule(name="t2", apart=True), TaskRule(name="t2")):
            for backend in (here, model):
                await backend.declare((), [rule], now=NOW + 21)
            assert await lanes(here) == await lanes(model), rule
        for pause in (here.pause, model.pause):
            await pause(Pause(task="t2"), now=NOW + 22)
        assert await lanes(here) == await lanes(model)

    both(make, compare)


def test_a_claim_obeys_a_limit_whose_jobs_are_not_yet_in_their_lane(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id=f"{n}", task=f"t{n % 2}", group="g" if n == 4 else None) for n in range(10)])
        backend.rule_step_max = 0  # its own step moves none of its jobs
        await backend.limit(Override(task="t0", limit=2))
        taken: list[str] = []
        for call in range(1, 5):
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
            taken += [lease.id for lease in (await backend.claim(request)).leases]
        assert sorted(taken) == ["0", "1", "2", "3", "5", "7", "9"]
        await backend.limit(Override(task="t0", limit=None))  # nor back
        for call in range(5, 9):
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
            taken += [lease.id for lease in (await backend.claim(request)).leases]
        assert sorted(taken) == [f"{n}" for n in range(10)]
        await sound(backend, "after the claims")
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("limit", [2, 1000])
def test_rules_of_tasks_let_go_as_many_page_by_page(make: Make, limit: int) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        tasks = [
            TaskRule(name="t0", retain_count=2, retain_dead_count=1),
            TaskRule(name="t1", retain_count=0, retain_dead=604.0),
        ]
        for backend in (here, model):  # the jobs finished before the rules came
            await backend.declare((), tasks, now=NOW + 20)
        for later in (590.0, 604.5, 610.0, 700.0):
            numbers = [await backend.prune(limit=limit, now=NOW + later) for backend in (here, model)]
            assert numbers[0] == numbers[1], later
            found = [await backend.find(JobQuery(limit=1000)) for backend in (here, model)]
            assert [job.id for job in found[0]] == [job.id for job in found[1]], later

    both(make, compare)


async def parked(backend: Backend) -> list[str]:
    jobs = (await backend.dump()).tables["jobs"]
    return [job["id"] for job in jobs if job["state"] == "ready" and job["lane"] == 2]


def test_who_died_in_the_middle_of_a_resume_leaves_the_rest_to_the_sweep(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await filled(backend)
        await backend.enqueue([NewJob(id=f"more{n}", task="t1") for n in range(10)])
        await backend.pause(Pause(task="t1"))
        while await backend.rearrange():
            pass
        backend.rule_step_max = 0
        await backend.resume(Pause(task="t1"))
        assert await parked(backend)
        for _ in range(40):
            await backend.refill(limit=2)
        assert await parked(backend) == []
        await sound(backend, "after the sweep")
        await backend.close()

    asyncio.run(run())


def test_a_claim_passes_over_a_paused_task_that_is_not_yet_parked(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id=f"{n}", task=f"t{n % 2}") for n in range(10)])
        backend.rule_step_max = 0
        await backend.pause(Pause(task="t0"))
        answer = await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=10))
        assert sorted(lease.id for lease in answer.leases) == ["1", "3", "5", "7", "9"]
        await sound(backend, "after the claim")
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("why", ["expired", "paused"])
def test_one_claim_skips_up_to_a_bound_and_the_next_continues(make: Make, why: str) -> None:
    async def run() -> None:
        backend = make(call_timeout=60.0)
        await backend.open()
        await backend.register(WorkerRecord(id="w", lease_seconds=1e9), now=NOW)
        expires = 10.0 if why == "expired" else None
        await backend.enqueue([NewJob(id=f"{n}", task="t", expires=expires) for n in range(4000)], now=NOW)
        await backend.enqueue([NewJob(id="good", task="good"), NewJob(id="g", task="good", group="g")], now=NOW)
        if why == "paused":
            backend.rule_step_max = 0
            await backend.pause(Pause(task="t"), now=NOW)
        taken: list[str] = []
        for call in range(1, 25):
            request = ClaimRequest(worker="w", call=call, queues=("default",), most=10)
            taken += [lease.id for lease in (await backend.claim(request, now=NOW + 20)).leases]
            if call == 1:
                assert taken == ["g"]  # the other lane does not wait for this one
                dump = await backend.dump()
                passed = [job for job in dump.tables["jobs"] if job["state"] == "dead" or job["lane"] == 2]
                assert 200 <= len(passed) <= 2 * request.sweep_max
        assert taken == ["g", "good"]
        await sound(backend, "after all claims")
        await backend.close()

    asyncio.run(run())


def test_a_rule_reaches_every_group(make: Make) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        for limit, order in ((3, "relaxed"), (1, "strict"), (2, "relaxed")):
            rules = [QueueRule(name=queue, group_limit=limit, group_order=order) for queue in QUEUES]  # type: ignore[arg-type]
            for backend in (here, model):
                await backend.declare(rules, now=NOW + 20)
                while await backend.rearrange(now=NOW + 20):
                    pass
            assert await here.groups(limit=1000) == await model.groups(limit=1000)

    both(make, compare)


@pytest.mark.parametrize(("limit", "older_than"), [(7, None), (1000, None), (7, 600.0), (1000, 600.0)])
def test_prune_removes_as_many(make: Make, limit: int, older_than: float | None) -> None:
    async def compare(here: Backend, model: Backend) -> None:
        later = NOW + (604.5 if older_than else 100_000.0)
        for _ in range(3):
            numbers = [await backend.prune(limit=limit, older_than=older_than, now=later) for backend in (here, model)]
            assert numbers[0] == numbers[1]
        assert len(await here.find(JobQuery(limit=1000))) == len(await model.find(JobQuery(limit=1000)))

    both(make, compare)


def test_every_function_a_script_calls_is_there() -> None:
    """A name misspelt in a branch that is rarely taken would be found by its first user."""
    calls = re.compile(r"(?<![\w.:'])(hf\.\w+|[a-z_]\w*)\(")
    for verb, script in load_scripts().items():
        text = re.sub(r" -- .*$", "", script.text, flags=re.M)
        text = re.sub(r"'(?:\\.|[^'\\])*'", "''", text)
        made = set(re.findall(r"^function (hf\.\w+)\(", text, re.M))
        made |= set(re.findall(r"^(hf\.\w+) = ", text, re.M))  # a function, or false while there is none
        made |= set(re.findall(r"local function (\w+)\(", text))
        made |= {name for line in re.findall(r"local ([\w, ]+)(?: =|$)", text, re.M) for name in line.split(", ")}
        made |= {"ipairs", "pairs", "next", "select", "tonumber", "unpack", "type", "each", "function"}
        made |= {"setmetatable", "rawget", "build", "error", "pcall", "tostring"}
        words = {"if", "and", "or", "not", "return", "while", "elseif", "until"}
        assert set(calls.findall(text)) - made - words == set(), verb
        fields = set(re.findall(r"hf\.\w+", text)) - set(re.findall(r"(hf\.\w+)(?:, hf\.\w+)* =", text)) - made
        listed = {name for line in re.findall(r"^(hf\.\w+(?:, hf\.\w+)+) =", text, re.M) for name in line.split(", ")}
        assert fields - listed == set(), verb
