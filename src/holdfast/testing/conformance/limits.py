"""Conformance of limits: how many jobs of a queue, of a task, run at once over all workers.

Called by run_case. Limits of groups are in group_limits, what operators say in overrides, many rivals in flow_rivals.
"""

from __future__ import annotations

from itertools import product

from msgspec import structs

from ...errors import ConfigurationError
from ...lifecycle import Ending, State
from ...rates import Rate
from ...records import Override, Pause, QueueRule, TaskRule
from .compare import same
from .flow import end_all, in_state, places, queue_shown, rule, task_rule, task_shown
from .groups import DELAY, WAYS
from .registry import case, case_for_each
from .world import FOREVER, World

KINDS = ("queue", "task")
BOTH = ("default", "other")


async def _limited(world: World, kind: str, limit: int | None) -> None:
    """Queue "default" or task "work" has that limit."""
    await (rule(world, limit=limit) if kind == "queue" else task_rule(world, limit=limit))


# ---------------------------------------------------------------------- of a queue and of a task alike


@case_for_each(product(KINDS, (1, 2, 5)), name=lambda p: f"{p[0]}, {p[1]}")
async def no_more_run_at_once_than_the_limit(world: World, param: tuple[str, int]) -> None:
    kind, limit = param
    await _limited(world, kind, limit)
    ids = await world.enqueue_many(8)
    leases = await world.claim(8)
    same([lease.id for lease in leases], ids[:limit], "claimable at once")
    for position, lease in enumerate(leases):
        await world.claim_none()
        await world.end(lease)
        same(await world.claim_ids(8), ids[limit + position : limit + position + 1], "each end brings one")


@case_for_each(KINDS)
async def a_limit_counts_over_all_workers(world: World, kind: str) -> None:
    await _limited(world, kind, 3)
    await world.enqueue_many(9)
    same(len(await world.claim(2, "w1")), 2, "w1")
    same(len(await world.claim(5, "w2")), 1, "w2")
    await world.claim_none("w3")


@case_for_each(product(KINDS, WAYS), name=lambda p: f"{p[0]}, {p[1]}")
async def a_place_is_free_however_a_lease_ends(world: World, param: tuple[str, str]) -> None:
    kind, ended = param
    way, max_stalls, _ = WAYS[ended]
    await _limited(world, kind, 1)
    head = await world.enqueue(max_stalls=max_stalls)
    ids = [head, *await world.enqueue_many(2)]
    lease = await world.claim_one(head)
    await world.claim_none("w9", lease=FOREVER)
    await way(world, lease)
    for _ in range(4 * len(ids)):
        leases = await world.claim(9, "w9")
        assert len(leases) <= 1, f"{len(leases)} run at once, limit 1"
        await end_all(world, leases)
        if not leases:
            world.advance(DELAY + 1.0)
    same([i for i in ids if not (await world.state(i)).finished], [], f"never started once a lease was {ended}")


@case_for_each(KINDS)
async def a_limit_that_comes_later_counts_what_already_runs(world: World, kind: str) -> None:
    await world.enqueue_many(6)
    leases = await world.claim(3)
    await _limited(world, kind, 2)
    same(await places(world), 0, "three run, two may")
    await world.end(leases[0])
    same(await places(world), 0, "two run, two may")
    await world.end(leases[1])
    same(await places(world), 1, "one runs, two may")


@case_for_each(KINDS)
async def lowering_a_limit_stops_nobody_and_starts_nobody(world: World, kind: str) -> None:
    await _limited(world, kind, 4)
    ids = await world.enqueue_many(8)
    leases = await world.claim(4)
    await _limited(world, kind, 2)
    same(await world.states(ids[:4]), [State.RUNNING] * 4, "those who run")
    same((await world.renew("w1", leases)).lost, (), "leases lost")
    await end_all(world, leases[:2])
    await world.claim_none()
    await world.end(leases[2])
    same(await world.claim_ids(8), [ids[4]], "the next, once there is room")


@case_for_each(KINDS)
async def raising_a_limit_lets_more_start_at_once(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    ids = await world.enqueue_many(6)
    await world.claim_one(ids[0])
    await _limited(world, kind, 4)
    same(await world.claim_ids(9), ids[1:4], "claimable")


@case_for_each(KINDS)
async def a_limit_that_is_declared_away_binds_nobody(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    ids = await world.enqueue_many(5)
    await _limited(world, kind, None)
    same(await world.claim_ids(9), ids, "claimable")


@case_for_each(KINDS)
async def a_limit_loses_no_place_to_workers_that_die(world: World, kind: str) -> None:
    await _limited(world, kind, 2)
    await world.enqueue_many(6, max_stalls=50)
    for n in range(4):
        worker = f"mortal-{n}"
        same(len(await world.claim(9, worker)), 2, f"places of the limit, round {n}")
        await world.expire_worker(worker)
    same(await places(world), 2, "places at last")


@case_for_each(KINDS)
async def a_retired_worker_leaves_its_places(world: World, kind: str) -> None:
    await _limited(world, kind, 3)
    ids = await world.enqueue_many(5)
    same(len(await world.claim(9, "w1")), 3, "w1")
    same(await world.backend.retire("w1", now=world.now), 3, "given back")
    same(await world.claim_ids(9, "w2"), ids[:3], "w2")


@case_for_each(KINDS)
async def a_cancelled_job_keeps_its_place_until_it_ends(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    first, second = await world.enqueue_many(2)
    lease = await world.claim_one(first)
    await world.backend.cancel(first, now=world.now)
    await world.claim_none()
    await world.give_back(lease)
    await world.is_in(first, State.CANCELLED)
    await world.claim_one(second)


@case_for_each(KINDS)
async def jobs_in_no_lease_take_no_place(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    await world.put(State.SUCCEEDED)
    await world.put(State.DEAD)
    await world.enqueue(delay=500.0)
    await world.end(await world.claim_one(await world.enqueue()))
    same(await places(world), 0, "nothing is ready")
    await world.enqueue_many(2)
    same(await places(world), 1, "and the place is free")


@case_for_each(KINDS)
async def an_expired_job_takes_no_place(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    await world.enqueue_many(300, expires=10.0)
    world.advance(11.0)
    fine = await world.enqueue(priority=-1)
    got = [job_id for _ in range(3) for job_id in await world.claim_ids(2, lease=FOREVER)]
    same(got, [fine], "leased")


@case_for_each(KINDS)
async def a_repeated_claim_takes_no_second_place(world: World, kind: str) -> None:
    await _limited(world, kind, 2)
    await world.enqueue_many(5)
    await world.register("w1")
    request = world.request("w1", 1)
    first = await world.backend.claim(request, now=world.now)
    async with world.unchanged("the same call again"):
        again = await world.backend.claim(request, now=world.now)
    same([x.token for x in again.leases], [x.token for x in first.leases], "leases")
    same(len(await world.claim(5)), 1, "places left")


@case_for_each(KINDS)
async def settle_and_claim_in_one_step_use_the_place_that_comes_free(world: World, kind: str) -> None:
    await _limited(world, kind, 1)
    ids = await world.enqueue_many(4)
    lease = await world.claim_one(ids[0])
    for job_id in ids[1:]:
        found = await world.exchange([world.settlement(lease, Ending.SUCCEEDED)], [], world.request("w1", 5))
        same([x.id for x in found.leases], [job_id], "leased in the same step")
        [lease] = found.leases


@case_for_each(KINDS)
async def a_limit_said_on_one_connection_holds_on_another(world: World, kind: str) -> None:
    await world.enqueue_many(5)
    await world.register("w1")
    other = world.make_backend(world.store)
    await other.open()
    try:
        rules, tasks = (
            ([QueueRule(name="default", limit=2)], []) if kind == "queue" else ([], [TaskRule(name="work", limit=2)])
        )
        await other.declare(rules, tasks, now=world.now)
        same(len(await world.claim(9)), 2, "claimed on a connection that was there before")
    finally:
        if other is not world.backend:
            await other.close()


@case_for_each(KINDS)
async def declaring_the_same_limit_again_changes_nothing(world: World, kind: str) -> None:
    await _limited(world, kind, 2)
    await world.enqueue_many(4)
    await world.claim(1)
    async with world.unchanged("the same declaration"):
        await _limited(world, kind, 2)


# ---------------------------------------------------------------------- of a queue


@case
async def a_queues_limit_counts_every_lane(world: World) -> None:
    await rule(world, limit=5)
    await task_rule(world, "apart", apart=True)
    await world.enqueue_many(4)
    await world.enqueue_many(4, task="apart")
    for n in range(4):
        await world.enqueue(group=f"g{n}")
    for left in (5, 3, 1):
        same(await places(world), left, "places")
        await world.claim(2, lease=FOREVER)
    same(await places(world), 0, "places")


@case
async def a_full_queue_leaves_the_slots_to_the_next(world: World) -> None:
    await rule(world, "a", limit=2)
    a, b = await world.enqueue_many(4, queue="a"), await world.enqueue_many(9, queue="b")
    same(await world.claim_ids(6, queues=("a", "b")), [*a[:2], *b[:4]], "two of a, the rest of b")
    same(await world.claim_ids(6, queues=("a", "b")), b[4:], "a is full")


@case_for_each([(1, 3), (3, 1), (2, 2)], name=lambda p: f"limit {p[0]}, worker {p[1]}")
async def the_queues_limit_and_the_workers_bind_together(world: World, param: tuple[int, int]) -> None:
    await rule(world, limit=param[0])
    await world.enqueue_many(6)
    same(len(await world.claim(9, most_by_queue={"default": param[1]})), min(param), "the lesser of both")


@case
async def a_queues_limit_says_nothing_of_other_queues(world: World) -> None:
    await rule(world, limit=1)
    await world.enqueue_many(3)
    await world.enqueue_many(3, queue="other")
    same(await places(world, queues=("other",)), 3, "places in the other")
    same(await places(world, queues=BOTH), 4, "places in both")


@case
async def a_paused_queue_keeps_its_limit(world: World) -> None:
    await rule(world, limit=2)
    await world.enqueue_many(5)
    await world.claim(1)
    pause = Pause(queue="default")
    await world.backend.pause(pause, now=world.now)
    same(await places(world), 0, "paused")
    await world.backend.resume(pause, now=world.now)
    same(await places(world), 1, "resumed")


@case
async def a_queues_limit_binds_groups_beyond_their_own(world: World) -> None:
    await rule(world, limit=3, group_limit=2, group_order="relaxed")
    for name in "abc":
        await world.enqueue_many(2, group=name)
    leases = await world.claim(9)
    same(len(leases), 3, "of six ready jobs")
    same(sorted(lease.group or "" for lease in leases), ["a", "b", "c"], "one of each group first")


# ---------------------------------------------------------------------- of a task


@case
async def a_tasks_limit_counts_over_all_queues(world: World) -> None:
    await task_rule(world, limit=3)
    await world.enqueue_many(4, queue="default")
    await world.enqueue_many(4, queue="other")
    same(len(await world.claim(2, "w1", queues=BOTH)), 2, "w1")
    same(await places(world, queues=("other",)), 1, "places in the other queue")
    same(await places(world, queues=BOTH[::-1]), 1, "places in both")


@case
async def one_claim_of_several_queues_keeps_a_tasks_limit(world: World) -> None:
    await task_rule(world, limit=3)
    for queue in ("a", "b", "c"):
        await world.enqueue_many(2, queue=queue)
    same(len(await world.claim(9, queues=("a", "b", "c"))), 3, "leased by one claim")


@case
async def a_full_task_delays_no_other(world: World) -> None:
    await task_rule(world, "capped", limit=1)
    capped = await world.enqueue_many(world.sized(2000), task="capped", priority=50)
    fine = await world.enqueue_many(3, task="fine")
    grouped = await world.enqueue(task="fine", group="g")
    same(sorted(await world.claim_ids(9)), sorted([capped[0], *fine, grouped]), "one capped job and all others")
    later = await world.enqueue(task="fine")
    same(await world.claim_ids(1), [later], "a later one of another task")


@case
async def two_limited_tasks_know_nothing_of_each_other(world: World) -> None:
    await world.backend.declare([], [TaskRule(name="a", limit=1), TaskRule(name="b", limit=2)], now=world.now)
    for task in ("a", "b", "c"):
        await world.enqueue_many(4, task=task)
    leases = await world.claim(20)
    same(sorted(lease.task for lease in leases), ["a", "b", "b", "c", "c", "c", "c"], "leased")


@case
async def the_limits_of_queue_and_task_bind_together(world: World) -> None:
    await world.backend.declare([QueueRule(name="default", limit=3)], [TaskRule(name="a", limit=2)], now=world.now)
    await world.enqueue_many(5, task="a")
    same(len(await world.claim(9)), 2, "of the task alone")
    await world.enqueue_many(5, task="b")
    same([lease.task for lease in await world.claim(9)], ["b"], "what the queue has left")


@case
async def a_capped_head_keeps_its_strict_groups_place(world: World) -> None:
    await task_rule(world, "capped", limit=1)
    running = await world.claim_one(await world.enqueue(task="capped"))
    head = await world.enqueue(task="capped", group="g")
    behind = await world.enqueue(task="fine", group="g")
    same(await world.states([head, behind]), [State.READY, State.WAITING], "states")
    await world.claim_none()
    await world.end(running)
    same(await world.claim_ids(9), [head], "the head first")


@case
async def limits_and_what_runs_are_shown(world: World) -> None:
    await rule(world, limit=4)
    await task_rule(world, limit=3)
    await world.enqueue_many(2)
    await world.enqueue_many(2, queue="other")
    await world.claim(9, queues=BOTH)
    queue, task = await queue_shown(world), await task_shown(world)
    same((queue.declared, queue.limit, queue.override), (True, 4, None), "the queue")
    same((task.declared, task.rule.limit, task.override, task.running), (True, 3, None, 3), "the task")


@case
async def what_is_ready_stays_ready_while_a_limit_is_reached(world: World) -> None:
    """Nothing is fetched and put back: the jobs behind a limit are not touched by the claims that pass them by."""
    await rule(world, limit=1)
    await task_rule(world, "other", limit=1)
    ids = await world.enqueue_many(3)
    others = await world.enqueue_many(3, task="other", queue="other")
    await world.claim(9, queues=BOTH)
    before = (await world.tables())["jobs"]
    for _ in range(3):
        await world.claim_none(queues=BOTH)
    same((await world.tables())["jobs"], before, "jobs")
    same(len(await in_state(world, [*ids, *others], State.READY)), 4, "ready")


# ----------------------------------------------------------------------------------------------------------------------
# Declare and tasks: what the code says of a task, what an operator said, and what is shown of both.


FULL = TaskRule(
    name="work",
    limit=3,
    rate=Rate(10, 60.0, 4),
    apart=True,
    retain_count=100,
    retain_dead=86400.5,
    retain_dead_count=7,
)


@case
async def a_task_rule_is_stored_and_shown_whole(world: World) -> None:
    same(await world.backend.tasks(), [], "tasks of a new store")
    await world.backend.declare([], [FULL, TaskRule(name="a", apart=True)], now=world.now)
    first, second = await world.backend.tasks()
    same((first.rule, first.declared, first.override), (TaskRule(name="a", apart=True), True, None), "the first")
    same((second.rule, second.declared, second.running), (FULL, True, 0), "the second")
    rows = (await world.tables())["tasks"]
    same([row["name"] for row in rows], ["a", "work"], "in the dump, by name")
    for field in ("limit", "apart", "retain_count", "retain_dead", "retain_dead_count"):
        same(rows[1][field], getattr(FULL, field), f"{field} in the dump")


@case
async def a_queue_rule_is_stored_and_shown_whole(world: World) -> None:
    rule = QueueRule(
        name="q",
        group_limit=4,
        group_order="relaxed",
        limit=9,
        rate=Rate(100, 60.0),
        group_rate=Rate(5, 1.0, 2),
        aging=2.5,
    )
    await world.backend.declare([rule], now=world.now)
    [shown] = await world.backend.queues()
    for field in ("name", "group_limit", "group_order", "limit", "rate", "group_rate", "aging"):
        same(getattr(shown, field), getattr(rule, field), field)
    same((shown.declared, shown.override, shown.flow), (True, None, None), "besides")


@case
async def the_latest_declaration_of_a_task_wins_as_a_whole(world: World) -> None:
    await world.backend.declare([], [FULL], now=world.now)
    await world.backend.declare([], [TaskRule(name="work", retain_count=5)], now=world.now)
    [shown] = await world.backend.tasks()
    same(shown.rule, TaskRule(name="work", retain_count=5), "the rule")


@case
async def a_task_rule_that_says_nothing_is_removed(world: World) -> None:
    await world.backend.declare([], [FULL, TaskRule(name="other", limit=1)], now=world.now)
    await world.backend.declare([], [TaskRule(name="work"), TaskRule(name="never")], now=world.now)
    same([task.rule.name for task in await world.backend.tasks()], ["other"], "tasks shown")
    same([row["name"] for row in (await world.tables())["tasks"]], ["other"], "in the dump")


@case
async def declaring_the_same_tasks_again_changes_nothing(world: World) -> None:
    await world.enqueue_many(3)
    await world.backend.declare([QueueRule(name="q", limit=2)], [FULL], now=world.now)
    world.advance(5.0)
    async with world.unchanged("the same declaration"):
        await world.backend.declare([QueueRule(name="q", limit=2)], [FULL], now=world.now)
        await world.backend.declare([], [], now=world.now)


@case
async def declaring_one_task_leaves_the_others_alone(world: World) -> None:
    await world.backend.declare([QueueRule(name="q")], [FULL], now=world.now)
    await world.backend.declare([], [TaskRule(name="other", limit=1)], now=world.now)
    same([task.rule for task in await world.backend.tasks()], [TaskRule(name="other", limit=1), FULL], "tasks shown")
    same([queue.name for queue in await world.backend.queues()], ["q"], "queues shown")


@case_for_each(["task", "queue", "group_limit"])
async def of_a_declaration_with_a_limit_below_one_nothing_is_stored(world: World, where: str) -> None:
    bad_task = TaskRule(name="bad", limit=0)
    bad_queue = {"queue": QueueRule(name="bad", limit=0), "group_limit": QueueRule(name="bad", group_limit=0)}
    rules = [QueueRule(name="good", limit=2), *([bad_queue[where]] if where in bad_queue else [])]
    tasks = [TaskRule(name="good", limit=2), *([bad_task] if where == "task" else [])]
    async with world.refused(ConfigurationError, f"a limit below 1 ({where})"):
        await world.backend.declare(rules, tasks, now=world.now)


@case
async def a_task_with_an_operators_word_alone_is_shown_undeclared(world: World) -> None:
    await world.backend.limit(Override(task="mail", limit=2), now=world.now)
    [shown] = await world.backend.tasks()
    same((shown.rule, shown.declared), (TaskRule(name="mail"), False), "rule")
    assert shown.override is not None, "the override is shown"
    same((shown.override.task, shown.override.limit), ("mail", 2), "override")
    await world.backend.limit(Override(task="mail", limit=None), now=world.now)
    same(await world.backend.tasks(), [], "tasks once it is reset")


@case
async def removing_a_rule_leaves_the_operators_word(world: World) -> None:
    await world.backend.declare([], [FULL], now=world.now)
    await world.backend.limit(Override(task="work", limit=1), now=world.now)
    await world.backend.declare([], [TaskRule(name="work")], now=world.now)
    [shown] = await world.backend.tasks()
    same((shown.rule, shown.declared), (TaskRule(name="work"), False), "rule")
    assert shown.override is not None, "the override is shown"
    same(shown.override.limit, 1, "override")


@case
async def a_task_shows_how_many_of_it_run_in_all_queues(world: World) -> None:
    await world.backend.declare([], [structs.replace(FULL, rate=None)], now=world.now)
    await world.enqueue(queue="other")
    await world.enqueue_many(2)
    await world.enqueue(task="plain")
    await world.claim(9, queues=("default", "other"))
    [shown] = await world.backend.tasks()
    same(shown.running, 3, "running")
