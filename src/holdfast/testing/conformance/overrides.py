"""Conformance of limit: an operator's override of a queue, a task or a group applies until it is reset.

Called by run_case. Also what every flow verb refuses, and what a sealed store does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

from msgspec import UNSET

from ...errors import ConfigurationError, StoreSealed
from ...rates import NO_RATE, UNLIMITED, Rate
from ...records import SERIAL_PREFIX, Override, QueueRule, TaskRule
from .compare import same
from .flow import group_shown, limit, places, queue_shown, rule, task_rule, task_shown
from .registry import case, case_for_each
from .seal import SOURCE, close
from .world import World

KINDS: dict[str, dict[str, str]] = {
    "queue": {"queue": "default"},
    "task": {"task": "work"},
    "group": {"queue": "default", "group": "g"},
}
SLOW = Rate(1, 1000.0)
BURST = Rate(1, 1000.0, 3)


async def _declared(world: World, kind: str, limit: int | None, rate: Rate | None = None) -> None:
    """What the code says of queue "default", task "work" or the groups of "default"."""
    if kind == "queue":
        await rule(world, limit=limit, rate=rate)
    elif kind == "task":
        await task_rule(world, limit=limit, rate=rate)
    else:
        await rule(world, group_order="relaxed", group_limit=limit or UNLIMITED, group_rate=rate)


async def _jobs(world: World, kind: str, number: int = 9) -> list[str]:
    return await world.enqueue_many(number, **({"group": "g"} if kind == "group" else {}))


async def _shown(world: World, kind: str) -> tuple[Any, Any, Any, Any]:
    """Declared or effective limit and rate as shown, and what an operator said of each; None: nothing."""
    if kind == "group":
        group = await group_shown(world)
        return group.limit, group.rate, group.override, group.rate_override
    if kind == "queue":
        queue = await queue_shown(world)
        limit, rate, said = queue.limit, queue.rate, queue.override
    else:
        task = await task_shown(world)
        limit, rate, said = task.rule.limit, task.rule.rate, task.override
    said = said or Override()
    return limit, rate, None if said.limit is UNSET else said.limit, None if said.rate is UNSET else said.rate


async def _overrides(world: World) -> list[dict[str, Any]]:
    return (await world.tables())["overrides"]


# ---------------------------------------------------------------------- limits


@case_for_each(KINDS)
async def an_operators_limit_beats_the_declared_one_until_reset(world: World, kind: str) -> None:
    await _declared(world, kind, 3)
    await _jobs(world, kind)
    for said, expected in ((5, 5), (1, 1), (8, 8), (None, 3)):
        await limit(world, **KINDS[kind], limit=said)
        same(await places(world), expected, f"places once the operator said {said}")


@case_for_each(KINDS)
async def an_operators_limit_outlives_every_declaration(world: World, kind: str) -> None:
    await _declared(world, kind, 2)
    await limit(world, **KINDS[kind], limit=4)
    await _jobs(world, kind)
    for declared in (3, 7, 2):
        await _declared(world, kind, declared)
        same(await places(world), 4, "places")
    await limit(world, **KINDS[kind], limit=None)
    same(await places(world), 2, "places once it is reset")


@case_for_each(KINDS)
async def an_operator_can_lift_a_limit(world: World, kind: str) -> None:
    await _declared(world, kind, 2)
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], limit=UNLIMITED)
    same(await places(world), 9, "places")
    await limit(world, **KINDS[kind], limit=None)
    same(await places(world), 2, "places once it is reset")


@case_for_each(("queue", "task"))
async def an_operator_can_limit_what_nobody_declared(world: World, kind: str) -> None:
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], limit=2)
    same(await places(world), 2, "places")
    same((await _shown(world, kind))[2], 2, "shown")
    await limit(world, **KINDS[kind], limit=None)
    same(await places(world), 9, "places once it is reset")


@case_for_each(KINDS)
async def an_operators_limit_lowered_below_what_runs_stops_nobody(world: World, kind: str) -> None:
    await _declared(world, kind, 5)
    await _jobs(world, kind)
    leases = await world.claim(3)
    await limit(world, **KINDS[kind], limit=2)
    same(await places(world), 0, "places")
    for left, lease in zip((0, 1, 2), leases, strict=True):
        await world.end(lease)
        same(await places(world), left, "places")


@case_for_each(KINDS)
async def what_was_declared_and_what_an_operator_said_are_both_shown(world: World, kind: str) -> None:
    await _declared(world, kind, 3, SLOW)
    if kind == "group":
        same(await _shown(world, kind), (3, SLOW, None, None), "before")
    await limit(world, **KINDS[kind], limit=5)
    await limit(world, **KINDS[kind], rate=BURST)
    effective = (5, BURST) if kind == "group" else (3, SLOW)
    same(await _shown(world, kind), (*effective, 5, BURST), "with an override")
    await limit(world, **KINDS[kind], limit=None, rate=None)
    same(await _shown(world, kind), (3, SLOW, None, None), "once it is reset")


# ---------------------------------------------------------------------- rates


@case_for_each(KINDS)
async def an_operators_rate_beats_the_declared_one_until_reset(world: World, kind: str) -> None:
    await _declared(world, kind, None, SLOW)
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], rate=BURST)
    same(len(await world.claim(9)), 3, "started under the operator's burst of 3")
    await limit(world, **KINDS[kind], rate=None)
    await world.claim_none()


@case_for_each(KINDS)
async def an_operator_can_lift_a_rate(world: World, kind: str) -> None:
    await _declared(world, kind, None, SLOW)
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], rate=NO_RATE)
    same(len(await world.claim(20)), 9, "started at once")
    same((await world.tables())["flows"], [], "and nothing was written down of them")


@case_for_each(("queue", "task"))
async def an_operator_can_slow_what_nobody_declared(world: World, kind: str) -> None:
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], rate=BURST)
    same(len(await world.claim(9)), 3, "started")
    await limit(world, **KINDS[kind], rate=None)
    same(len(await world.claim(9)), 6, "started once it is reset")


# ---------------------------------------------------------------------- what is said, left and reset


@case_for_each(KINDS)
async def what_is_unset_leaves_what_was_said(world: World, kind: str) -> None:
    await _declared(world, kind, 2)
    await limit(world, **KINDS[kind], limit=5)
    await limit(world, **KINDS[kind], rate=BURST)
    same((await _shown(world, kind))[2:], (5, BURST), "both")
    await limit(world, **KINDS[kind], limit=None)
    same((await _shown(world, kind))[2:], (None, BURST), "the limit is reset, the rate stays")
    await limit(world, **KINDS[kind], limit=4)
    await limit(world, **KINDS[kind], rate=None)
    same((await _shown(world, kind))[2:], (4, None), "the rate is reset, the limit stays")


@case_for_each(KINDS)
async def an_override_that_says_nothing_is_gone(world: World, kind: str) -> None:
    await _declared(world, kind, 2)
    await limit(world, **KINDS[kind], limit=5, rate=SLOW)
    [row] = await _overrides(world)
    same((row["queue"], row["group"], row["task"]), tuple(map(KINDS[kind].get, ("queue", "group", "task"))), "of what")
    same(row["limit"], 5, "limit")
    await limit(world, **KINDS[kind], rate=None)
    same([(row["limit"], row["rate"]) for row in await _overrides(world)], [(5, None)], "what is still said")
    await limit(world, **KINDS[kind], limit=None)
    same(await _overrides(world), [], "overrides")


@case_for_each(KINDS)
async def resetting_what_nobody_said_changes_nothing(world: World, kind: str) -> None:
    await _declared(world, kind, 2)
    await _jobs(world, kind, 3)
    async with world.unchanged("a reset of nothing"):
        await limit(world, **KINDS[kind], limit=None, rate=None)
        await limit(world, **KINDS[kind])


@case_for_each(KINDS)
async def saying_the_same_again_changes_nothing(world: World, kind: str) -> None:
    await _declared(world, kind, 4)
    await _jobs(world, kind)
    await limit(world, **KINDS[kind], limit=3, rate=BURST)
    await world.claim(1)
    async with world.unchanged("the same word"):
        await limit(world, **KINDS[kind], limit=3, rate=BURST)


@case
async def words_on_queue_group_and_task_stand_apart(world: World) -> None:
    await rule(world, group_order="relaxed", group_limit=5)
    for number, kind in enumerate(KINDS.values(), start=1):
        await limit(world, **kind, limit=number)
    same(sorted(row["limit"] for row in await _overrides(world)), [1, 2, 3], "limits said")
    await limit(world, **KINDS["queue"], limit=None)
    await limit(world, **KINDS["task"], limit=None)
    same([(row["group"], row["limit"]) for row in await _overrides(world)], [("g", 3)], "the group's stays")


@case
async def the_word_on_a_group_is_for_the_group_of_that_queue(world: World) -> None:
    for queue in ("default", "other"):
        await rule(world, queue, group_order="relaxed", group_limit=2)
        await world.enqueue_many(5, queue=queue, group="g")
        await world.enqueue_many(5, queue=queue, group="h")
    await limit(world, queue="default", group="g", limit=4)
    same(await places(world), 6, "four of g, two of h")
    same(await places(world, queues=("other",)), 4, "two of each")


@case
async def queues_and_tasks_of_which_only_an_operator_spoke_are_shown(world: World) -> None:
    await limit(world, queue="quiet", limit=3)
    await limit(world, task="quiet", limit=2)
    same([(q.name, q.declared) for q in await world.backend.queues()], [("quiet", False)], "queues")
    same([(t.rule, t.declared) for t in await world.backend.tasks()], [(TaskRule(name="quiet"), False)], "tasks")
    await limit(world, queue="quiet", limit=None)
    await limit(world, task="quiet", limit=None)
    same((await world.backend.queues(), await world.backend.tasks()), ([], []), "once it is reset")


# ---------------------------------------------------------------------- refusals


@case_for_each(product(KINDS, (0, -1)), name=lambda p: f"{p[0]}, {p[1]}")
async def an_operators_limit_below_one_is_refused(world: World, param: tuple[str, int]) -> None:
    kind, said = param
    await _declared(world, kind, 3)
    await _jobs(world, kind)
    async with world.refused(ConfigurationError, f"limit {said}"):
        await limit(world, **KINDS[kind], limit=said, rate=SLOW)


@case_for_each(["strict", "undeclared", "serial"])
async def more_than_one_at_once_is_refused_for_a_strict_group(world: World, how: str) -> None:
    group = SERIAL_PREFIX + "g" if how == "serial" else "g"
    if how != "undeclared":
        await rule(world, group_order="strict" if how == "strict" else "relaxed", group_limit=5)
    await world.enqueue_many(2, group=group)
    for said in (2, UNLIMITED):
        async with world.refused(ConfigurationError, f"limit {said}"):
            await limit(world, queue="default", group=group, limit=said)
    await limit(world, queue="default", group=group, limit=1)
    same(await places(world), 1, "places")


DECLARATIONS: dict[str, tuple[list[QueueRule], list[TaskRule]]] = {
    "queue limit 0": ([QueueRule(name="a", limit=1), QueueRule(name="b", limit=0)], [TaskRule(name="t", limit=1)]),
    "queue limit -1": ([QueueRule(name="a", limit=-1)], [TaskRule(name="t", limit=1)]),
    "group limit 0": ([QueueRule(name="a", group_limit=0, group_order="relaxed")], [TaskRule(name="t", limit=1)]),
    "task limit 0": ([QueueRule(name="a", limit=1)], [TaskRule(name="t", limit=1), TaskRule(name="u", limit=0)]),
    "task limit -1": ([QueueRule(name="a", limit=1)], [TaskRule(name="t", limit=-1)]),
}


@case_for_each(DECLARATIONS)
async def a_declaration_with_an_impossible_limit_stores_nothing_of_all(world: World, what: str) -> None:
    rules, tasks = DECLARATIONS[what]
    await rule(world, "a", limit=7)
    async with world.refused(ConfigurationError, what):
        await world.backend.declare(rules, tasks, now=world.now)


Act = Callable[[World], Awaitable[object]]
SEALED: dict[str, Act] = {
    "limit of a queue": lambda w: limit(w, queue="default", limit=5),
    "limit of a task": lambda w: limit(w, task="work", rate=SLOW),
    "reset": lambda w: limit(w, queue="kept", limit=None),
    "slow_down": lambda w: w.backend.slow_down("default", 5.0, now=w.now),
    "declare of a queue": lambda w: rule(w, limit=5),
    "declare of a task": lambda w: task_rule(w, limit=5),
    "declare away": lambda w: task_rule(w, "kept"),
}


@case_for_each(SEALED)
async def a_sealed_store_lets_nobody_change_its_flow(world: World, what: str) -> None:
    await limit(world, queue="kept", limit=3)
    await task_rule(world, "kept", limit=3)
    await world.enqueue_many(3)
    await close(world)
    async with world.refused(StoreSealed, what):
        await SEALED[what](world)
    async with world.unchanged("what is there already"):
        await task_rule(world, "kept", limit=3)
    same(await world.backend.seal(None, instead_of=SOURCE), True, "the seal is taken away")
    await SEALED[what](world)
