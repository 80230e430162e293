"""Explain says, in plain sentences, why a job is where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.errors import JobNotFound
from holdfast.inspection import Explanation, explain
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, Held, Lease, NewJob, Override, Pause, QueueRule, TaskRule, WorkerRecord
from holdfast.worker_status import draw

Scene = Callable[[Backend], Awaitable[Any]]


def explained(scene: Scene, job_id: str = "j1", tasks: set[str] | None = None) -> Explanation:
    """Play a scene on a fresh store, then explain a job of it."""

    async def play() -> Explanation:
        backend = open_backend("memory://")
        await backend.open()
        await scene(backend)
        return await explain(backend, job_id, tasks)

    return asyncio.run(play())


async def claim(backend: Backend, *, slots: int = 1) -> list[Lease]:
    worker = WorkerRecord(id="w1", host="box", pid=7, queues=("default",), slots=slots, lease_seconds=30.0)
    await backend.register(worker)
    request = ClaimRequest(worker="w1", call=1, queues=("default",), most=slots)
    return list((await backend.claim(request)).leases)


async def settle(backend: Backend, lease: Lease, ending: Ending, **fields: Any) -> None:
    failure = Failure(reason="failed", type="ValueError", text="no such page")
    settlement = Settlement(id=lease.id, token=lease.token, ending=ending, failure=failure, **fields)
    await backend.settle([settlement])


def test_a_ready_job_without_any_worker() -> None:
    told = explained(lambda backend: backend.enqueue([NewJob(id="j1", task="t")]))
    assert told.state is State.READY
    assert told.summary.startswith("No live worker serves queue 'default'. There is no live worker.")


def test_a_ready_job_whose_workers_are_all_busy() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j0", task="t"), NewJob(id="j1", task="t")])
        await claim(backend)

    assert explained(scene).summary == "It is ready, but no slot is free: 1 live worker, 1 slot."


def test_a_ready_job_that_may_be_claimed_at_once() -> None:
    async def scene(backend: Backend) -> None:
        await claim(backend, slots=3)
        await backend.enqueue([NewJob(id="j1", task="t")])

    told = explained(scene)
    assert "can be claimed now by 1 live worker" in told.summary
    assert told.reasons == ("1 job of queue 'default' ready, this one among them.",)


def test_a_running_job_that_no_runner_has_begun_says_so() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        [lease] = await claim(backend)
        await backend.renew("w1", [Held(lease.id, lease.token)], seen_call=1, portrait=draw([], unbegun=["j1"]))

    assert any("Its handler has not begun" in reason for reason in explained(scene).reasons)


def test_a_suspect_says_that_it_runs_alone_next() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        [lease] = await claim(backend)
        await settle(backend, lease, Ending.STALLED)

    told = explained(scene)
    assert told.reasons[0].startswith("It is a suspect: its process died. It runs alone next")


@pytest.mark.parametrize("isolates", [True, False])
def test_a_running_suspect_says_whether_it_is_alone_now(isolates: bool) -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        [lease] = await claim(backend)
        await settle(backend, lease, Ending.STALLED)
        await backend.register(WorkerRecord(id="w2", queues=("default",), slots=1, isolates=isolates))
        await backend.claim(ClaimRequest(worker="w2", call=1, queues=("default",), most=1))

    told = explained(scene)
    assert ("It is a suspect: its process died in the previous attempt; now it runs alone." in told.reasons) is isolates


@pytest.mark.parametrize(
    ("max_stalls", "alone", "sentence"),
    [
        (0, True, "its process died once (0 allowed)"),
        (0, False, "its process died once among other jobs (0 allowed)"),
        (1, True, "its process died twice (1 allowed)"),
        (1, False, "its process died 11 times among other jobs (10 allowed)"),
    ],
)
def test_a_job_that_died_with_its_process_says_how_often(max_stalls: int, alone: bool, sentence: str) -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t", max_stalls=max_stalls)])
        await backend.register(WorkerRecord(id="w1"))
        for call in range(1, 12):
            request = ClaimRequest(worker="w1", call=call, queues=("default",), most=1)
            for lease in (await backend.claim(request)).leases:
                crash = Failure(reason="crash", text="killed")
                ended = Settlement(id=lease.id, token=lease.token, ending=Ending.STALLED, alone=alone, failure=crash)
                await backend.settle([ended])

    told = explained(scene)
    assert told.state is State.DEAD
    assert sentence in told.summary


def test_a_job_that_is_not_due() -> None:
    told = explained(lambda backend: backend.enqueue([NewJob(id="j1", task="t", delay=3600.0, expires=60.0)]))
    assert told.summary.startswith("It is not due until 2")
    assert "(in 60 min)" in told.summary
    assert any("expires if not claimed" in sentence for sentence in told.reasons)
    assert told.next == ("Wait, or run it now: `holdfast run-now j1`.",)


def test_a_job_that_backs_off_and_blocks_its_group() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id=f"j{number}", task="t", group="ann") for number in (1, 2)])
        [lease] = await claim(backend)
        await settle(backend, lease, Ending.RETRY, failed=True, delay=60.0)

    head = explained(scene)
    assert head.summary.startswith("It is backing off after failure 1; due again ")
    assert any("ValueError: no such page" in sentence for sentence in head.reasons)
    assert any("head of strict group 'ann'" in sentence for sentence in head.reasons)
    behind = explained(scene, "j2")
    assert behind.summary.startswith("It is behind job j1 of its group 'ann', which is backing off until ")


def test_a_job_behind_one_that_runs() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id=f"j{number}", task="t", group="ann") for number in (1, 2)])
        await claim(backend)

    told = explained(scene, "j2")
    assert told.state is State.WAITING
    assert told.summary == "It is behind job j1 of its group 'ann', which is running on worker w1."
    assert "The group is strict, limit 1; 1 waiting in it." in told.reasons


def test_a_paused_group() -> None:
    async def scene(backend: Backend) -> None:
        await backend.pause(Pause(queue="default", group="ann", reason="complaint", by="kim"))
        await backend.enqueue([NewJob(id="j1", task="t", group="ann")])

    told = explained(scene)
    assert told.summary.startswith("Its group 'ann' is paused by kim since ")
    assert 'because "complaint"' in told.summary
    assert told.next == ("Resume the group: `holdfast resume --queue default --group ann`.",)


async def stopped(backend: Backend) -> None:
    """A group that its first job stopped."""
    await backend.declare([QueueRule(name="default", on_dead="stop")])
    await backend.enqueue([NewJob(id=f"j{number}", task="t", group="ann") for number in (1, 2)])
    [lease] = await claim(backend)
    await settle(backend, lease, Ending.BURIED, failed=True)


def test_a_group_that_a_dead_job_stops() -> None:
    told = explained(stopped, "j2")
    assert told.summary == "Its group 'ann' is stopped by job j1 (t), which died (on_dead=\"stop\")."
    ways = (
        "Run it again, before all others of its group: `holdfast dead revive j1`.",
        "Or give it up: `holdfast dead discard j1`.",
        "Or continue without it and keep its dead letter: `holdfast resume --queue default --group ann --skip-dead`.",
    )
    assert told.next == ways
    dead = explained(stopped, "j1")
    assert "Its group 'ann' is stopped until somebody acts (on_dead=\"stop\")." in dead.reasons
    assert dead.next == ways

    async def paused_too(backend: Backend) -> None:
        await stopped(backend)
        await backend.pause(Pause(queue="default", group="ann"))

    assert "Apart from that, dead job j1 stops it." in explained(paused_too, "j2").reasons


def test_a_job_that_waits_for_lower_orders() -> None:
    async def staged(backend: Backend) -> None:
        await backend.declare([QueueRule(name="default", order_window=3600.0)])
        await backend.enqueue([NewJob(id="j1", task="t", group="ann", order=7)])
        await backend.enqueue([NewJob(id="j2", task="t", group="ann", order=8, delay=7200.0)])

    told = explained(staged)
    assert told.summary.startswith("It waits until ")
    assert "for jobs of its group with an order below 7 (order_window=)." in told.summary
    assert "It runs earlier, in its order, if a later job of group 'ann' is due before that." in told.reasons
    assert "`holdfast run-now j1`" in told.next[0]
    assert explained(staged, "j2").summary.startswith("It is not due until ")


@pytest.mark.parametrize(
    ("pause", "word"), [(Pause(queue="default", reason="smtp down"), "Queue 'default'"), (Pause(task="t"), "Task 't'")]
)
def test_a_paused_queue_or_task(pause: Pause, word: str) -> None:
    async def scene(backend: Backend) -> None:
        await backend.pause(pause)
        await backend.enqueue([NewJob(id="j1", task="t")])
        await claim(backend)

    assert explained(scene).summary.startswith(f"{word} is paused since ")


def test_a_running_job_whose_cancel_was_asked_for() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        await claim(backend)
        await backend.cancel("j1")

    told = explained(scene)
    assert told.summary.startswith("It is running on worker w1 (pid 7 on box) since ")
    assert any("Cancellation was requested" in sentence for sentence in told.reasons)


def test_a_dead_job() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        [lease] = await claim(backend)
        await settle(backend, lease, Ending.BURIED, failed=True, reason="failed")

    told = explained(scene)
    assert told.summary.endswith(": its handler failed once and no retry is left.")
    assert "Its dead letter counts 1 death of this logical job." in told.reasons
    assert told.next == ("It runs again only if revived: `holdfast dead revive j1`.",)


def test_a_discarded_letter() -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        await backend.bury("j1", "away")
        await backend.discard("j1")

    told = explained(scene)
    assert told.summary.endswith(": its dead letter was discarded.")
    assert told.next == ("`holdfast retry j1` runs it again with fresh budgets.",)


def test_a_cancelled_and_a_succeeded_job() -> None:
    async def cancelled(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        await backend.cancel("j1")

    async def succeeded(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j1", task="t")])
        [lease] = await claim(backend)
        await backend.settle([Settlement(id="j1", token=lease.token, ending=Ending.SUCCEEDED)])

    assert explained(cancelled).summary.startswith("It was cancelled ")
    assert explained(succeeded).summary.startswith("It succeeded ")


def test_a_task_the_app_does_not_have() -> None:
    async def scene(backend: Backend) -> None:
        await claim(backend)
        await backend.enqueue([NewJob(id="j1", task="t")])

    assert "The app has no task 't'" in explained(scene, tasks={"other"}).summary
    assert "can be claimed now" in explained(scene, tasks={"t"}).summary


@pytest.mark.parametrize("delay", [0.0, 3600.0])
@pytest.mark.parametrize("group", [None, "g"])
def test_a_task_that_no_worker_has_is_not_waited_for(delay: float, group: str | None) -> None:
    def scene(*tasks: str, unknown: tuple[str, ...] = ()) -> Scene:
        async def play(backend: Backend) -> None:
            await claim(backend, slots=3)
            await backend.renew("w1", [], seen_call=1, portrait=draw([], unknown=unknown, tasks=tasks))
            await backend.enqueue([NewJob(id="j1", task="shop.send", delay=delay, group=group)])

        return play

    told = explained(scene("shop.sent", "other"))
    assert "No live worker of queue 'default' knows task 'shop.send'. Did you mean shop.sent?" in told.sentences
    assert told.next == ("Deploy code that has it, give another task that name as an alias, or cancel the job.",)
    assert told.next == explained(scene("shop.sent"), tasks={"shop.send"}).next == explained(scene(), tasks=set()).next
    known = explained(scene("shop.send"), tasks=set())
    assert known.next != told.next and "knows task" not in " ".join(known.sentences)


def test_a_worker_with_too_many_tasks_to_list_says_nothing_about_them() -> None:
    async def scene(backend: Backend) -> None:
        await claim(backend, slots=3)
        tasks = [f"some.module.task_{number}" for number in range(1000)]
        await backend.renew("w1", [], seen_call=1, portrait=draw([], tasks=tasks))
        await backend.enqueue([NewJob(id="j1", task="t")])

    assert "can be claimed now" in explained(scene).summary


def test_an_unknown_job() -> None:
    with pytest.raises(JobNotFound):
        explained(lambda backend: backend.enqueue([]), "nobody")


def test_arguments_are_never_told() -> None:
    told = explained(lambda backend: backend.enqueue([NewJob(id="j1", task="t", args=b'{"word":"hush"}')]))
    assert "hush" not in " ".join(told.sentences)


# ---------------------------------------------------------------------- brakes


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (lambda backend: backend.pause(Pause(task="u")), "Task 'u' is paused"),
        (lambda backend: backend.limit(Override(task="u", limit=1)), "Task 'u' runs 1 job, and its limit is 1"),
    ],
    ids=["paused", "limited"],
)
def test_a_job_behind_one_that_is_ready_and_held_back(wanted: Scene, sentence: str) -> None:
    async def scene(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="j0", task="u")])
        await claim(backend, slots=3)
        await wanted(backend)
        await backend.enqueue([NewJob(id="j2", task="u", group="g"), NewJob(id="j1", task="t", group="g")])

    told = explained(scene)
    assert told.summary == "It is behind job j2 of its group 'g', which is ready and held back."
    assert any(reason.startswith(sentence) for reason in told.reasons)


@pytest.mark.parametrize("order", ["strict", "relaxed"])
def test_a_group_that_has_used_up_its_rate_says_so_and_names_no_other_job(order: Any) -> None:
    async def scene(backend: Backend) -> None:
        rule = QueueRule(name="default", group_order=order, group_limit=3, group_rate=Rate(1, 60.0))
        await backend.declare([rule])
        await backend.enqueue([NewJob(id=f"j{n}", task="t", group="g") for n in (0, 2, 1)])
        [lease] = await claim(backend, slots=3)
        if order == "strict":
            await settle(backend, lease, Ending.SUCCEEDED)

    told = explained(scene)
    assert told.summary.startswith("Group 'g' has used up its rate of 1/m; the next may start")
    assert not any("is behind" in sentence for sentence in told.sentences)


def test_a_scheduled_job_of_a_paused_group_says_both() -> None:
    async def scene(backend: Backend) -> None:
        await backend.pause(Pause(queue="default", group="g", reason="audit"))
        await backend.enqueue([NewJob(id="j1", task="t", group="g", delay=60.0)])

    told = explained(scene)
    assert told.summary.startswith("It is not due until")
    assert any("Its group is paused" in reason and "audit" in reason for reason in told.reasons)


def test_a_raised_rate_is_explained_as_the_next_claim_computes_it() -> None:
    async def scene(backend: Backend) -> None:
        slow = Rate(1, 3600.0)
        await backend.declare([QueueRule(name="default", rate=slow)], [TaskRule(name="t", rate=slow)])
        await backend.enqueue([NewJob(id="j0", task="t"), NewJob(id="j1", task="t")])
        await claim(backend, slots=3)
        await backend.limit(Override(queue="default", rate=Rate(1, 5.0)))
        await backend.limit(Override(task="t", rate=Rate(1, 5.0)))

    told = explained(scene)
    used_up = [sentence for sentence in told.sentences if "has used up its rate of 1/5s" in sentence]
    assert len(used_up) == 2 and all("(in 5 s)" in sentence for sentence in used_up)


async def claim_chain(backend: Backend, jobs: int) -> list[Lease]:
    await backend.enqueue([NewJob(id=f"j{n}", task="t", group="g") for n in range(jobs)])
    await backend.register(WorkerRecord(id="w1", host="box", pid=7, queues=("default",), slots=1, lease_seconds=30.0))
    request = ClaimRequest(
        worker="w1", call=1, queues=("default",), most=1, chain_by_queue={"default": jobs}, chained_max=jobs
    )
    return list((await backend.claim(request)).leases)


def test_a_job_that_was_leased_behind_others_of_its_group() -> None:
    told = explained(lambda backend: claim_chain(backend, 4), "j2")
    assert told.summary.startswith("It is running on worker w1")
    [reason] = [reason for reason in told.reasons if "group_prefetch" in reason]
    assert reason.startswith("It was leased together with 2 jobs before it in group 'g' (group_prefetch), j0 first.")
    first = explained(lambda backend: claim_chain(backend, 4), "j0")
    assert not [reason for reason in first.reasons if "group_prefetch" in reason]
