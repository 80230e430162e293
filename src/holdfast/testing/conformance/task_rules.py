"""Conformance of declare and tasks: what the code says of a task, what an operator said, and what is shown of both.

Called by run_case. What the rules do is in the themes of limits, lanes and retention.
"""

from __future__ import annotations

from msgspec import structs

from ...errors import ConfigurationError
from ...rates import Rate
from ...records import Override, QueueRule, TaskRule
from .compare import same
from .registry import case, case_for_each
from .world import World

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
