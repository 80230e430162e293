"""Conformance of commands to a worker (R75): they come with its renewals until answered, and go with its row.

Called by run_case.
"""

from __future__ import annotations

from ...errors import ConfigurationError, JobNotFound
from ...records import Command
from ...worker_status import COMMANDS_KEPT_MAX
from .compare import same
from .registry import case
from .world import World


async def _ids(world: World, worker: str = "w1") -> list[str]:
    return [one.id for one in (await world.renew(worker)).commands]


@case
async def a_command_comes_with_every_renewal_until_it_is_answered(world: World) -> None:
    await world.register("w1")
    await world.register("w2")
    same(await _ids(world), [], "commands before any")
    stored = await world.backend.command("w1", Command(id="c1", ask="slots", value=3, by="ann"), now=world.now)
    same(stored, Command(id="c1", ask="slots", value=3, by="ann", at=world.now), "as stored")
    same((await world.renew("w1")).commands, (stored,), "with the first renewal")
    same(await _ids(world), ["c1"], "with the next one, if the first reply was lost")
    same(await _ids(world, "w2"), [], "another worker's")
    world.advance(2.0)
    same(await world.backend.answer("w1", "c1", "3 slots", now=world.now), True, "answered")
    same(await _ids(world), [], "after the answer")
    [done] = await world.backend.commands("w1")
    same((done.id, done.done_at, done.result, done.refused), ("c1", world.now, "3 slots", False), "what is kept")
    same(done.at, stored.at, "when it was given")


@case
async def the_first_answer_counts(world: World) -> None:
    await world.register("w1")
    await world.backend.command("w1", Command(id="c1", ask="stacks"), now=world.now)
    same(await world.backend.answer("w1", "c1", "no", refused=True, now=world.now), True, "first")
    same(await world.backend.answer("w1", "c1", "yes", now=world.now), False, "second")
    same(await world.backend.answer("w1", "c2", "yes", now=world.now), False, "of no command")
    same(await world.backend.answer("w9", "c1", "yes", now=world.now), False, "of no worker")
    [done] = await world.backend.commands("w1")
    same((done.result, done.refused), ("no", True), "kept")


@case
async def a_repeated_command_is_given_once(world: World) -> None:
    await world.register("w1")
    first = await world.backend.command("w1", Command(id="c1", ask="pause"), now=world.now)
    world.advance(1.0)
    same(await world.backend.command("w1", Command(id="c1", ask="pause"), now=world.now), first, "as stored before")
    same(await _ids(world), ["c1"], "given")


@case
async def a_command_needs_a_worker_and_goes_with_it(world: World) -> None:
    async with world.refused(JobNotFound, "command to nobody"):
        await world.backend.command("w1", Command(id="c1", ask="pause"), now=world.now)
    await world.register("w1")
    await world.backend.command("w1", Command(id="c1", ask="pause"), now=world.now)
    await world.backend.retire("w1", now=world.now)
    same(await world.backend.commands("w1"), [], "after retire")
    await world.register("w1")
    await world.backend.command("w1", Command(id="c2", ask="pause"), now=world.now)
    await world.expire_worker("w1")
    await world.backend.recover(now=world.now)
    same(await world.backend.commands("w1"), [], "after recover")


@case
async def commands_are_bounded_and_answered_ones_go_first(world: World) -> None:
    await world.register("w1")
    for number in range(COMMANDS_KEPT_MAX):
        world.advance(0.1)
        await world.backend.command("w1", Command(id=f"c{number:02d}", ask="stacks"), now=world.now)
    async with world.refused(ConfigurationError, "one command too many"):
        await world.backend.command("w1", Command(id="more", ask="stacks"), now=world.now)
    same(await world.backend.answer("w1", "c03", "x" * 1000, now=world.now), True, "answered")
    world.advance(0.1)
    await world.backend.command("w1", Command(id="more", ask="stop"), now=world.now)
    kept = [one.id for one in await world.backend.commands("w1")]
    expected = [f"c{number:02d}" for number in range(COMMANDS_KEPT_MAX) if number != 3]
    same(kept, [*expected, "more"], "kept, oldest first")
    same(await _ids(world), kept, "unanswered")


@case
async def commands_leave_a_sound_store(world: World) -> None:
    await world.register("w1")
    await world.backend.command("w1", Command(id="c1", ask="stacks"), now=world.now)
    same(await world.backend.flaws(), [], "flaws with a command")
    await world.backend.answer("w1", "c1", "here", now=world.now)
    same(await world.backend.flaws(), [], "flaws with an answer")
