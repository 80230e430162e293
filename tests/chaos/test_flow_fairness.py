"""One tenant with 100,000 jobs, another with one: the one starts within two claims, whatever the groups' limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import pytest

from holdfast.backends.contract import Backend
from holdfast.lifecycle import State
from holdfast.rates import UNLIMITED
from holdfast.records import ClaimRequest, Lease, NewJob, QueueRule, WorkerRecord
from tests.chaos.flow_scene import Crew
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

MANY = 100_000
SLOTS = 4
RULES = (
    QueueRule(name="tenants"),  # strict, one at a time
    QueueRule(name="tenants", group_limit=10, group_order="relaxed"),
    QueueRule(name="tenants", group_limit=UNLIMITED, group_order="relaxed"),
)
_calls = count(1)


async def claim(backend: Backend) -> tuple[Lease, ...]:
    request = ClaimRequest(worker="w", call=next(_calls), queues=("tenants",), most=SLOTS)
    return (await backend.exchange([], [], request)).leases


def starts_within_two_claims(name: str) -> Callable[[Backend], Awaitable[None]]:
    async def ask(backend: Backend) -> None:
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        await backend.enqueue([NewJob(id=name, task="plain", queue="tenants", group="b", args=b'{"label":"b","n":0}')])
        claimed = [lease.id for _ in range(2) for lease in await claim(backend)]
        assert name in claimed
        await backend.retire("w")

    return ask


def fences(crew: Crew, label: str) -> list[int]:
    """The numbers of the leases whose jobs have begun: they grow with every lease."""
    return [line["fence"] for line in crew.lines("start", label=label)]


def test_a_tenant_with_one_job_starts_within_two_claims_beside_a_tenant_with_a_hundred_thousand(crew: Crew) -> None:
    with crew.app() as app:
        of_a = app.named("plain", queue="tenants", group="a", max_stalls=100)
        app.enqueue_many(of_a.bind(label="a", n=n, seconds=0.0) for n in range(MANY))
        for rule in RULES:
            crew.asked(declared(rule))
            first = f"one beside {rule.group_limit}"
            crew.asked(starts_within_two_claims(first))
            before = len(fences(crew, "a"))
            worker = crew.start("work", queues=["tenants"], slots=SLOTS)
            until(partial(lambda most: len(fences(crew, "a")) > most, before + 3 * SLOTS), what="the worker is at it")
            until(partial(lambda one: crew.asked(has_ended(one)), first), what="nothing of its own group is before it")
            job = app.named("plain", queue="tenants", group="b").enqueue(label="b", n=0)
            acknowledged = max(fences(crew, "a"))
            until(partial(lambda job: job.refresh().state is State.SUCCEEDED, job), what="the one job ran")
            crew.kill(worker)
            between = [fence for fence in fences(crew, "a") if acknowledged < fence < job.fence]
            assert len(between) <= 2 * SLOTS, f"group_limit {rule.group_limit}"
        assert app.counts("tenants")["tenants"][State.WAITING] > MANY // 2
    assert crew.lines("crashed") == []


def has_ended(job_id: str) -> Callable[[Backend], Awaitable[bool]]:
    async def ask(backend: Backend) -> bool:
        found = await backend.get(job_id)
        return found is not None and found.state is State.SUCCEEDED

    return ask


def declared(rule: QueueRule) -> Callable[[Backend], Awaitable[None]]:
    return lambda backend: backend.declare([rule])
