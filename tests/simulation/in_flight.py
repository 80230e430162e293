"""The walk with messages in flight: workers on stores whose messages are late, lost, doubled and overtaken.

Called by the tests beside it, which say on which stores. The oracle is the journal of the handlers (keepers.py): a job
never runs twice at once, one that must run at most once starts once, groups keep their order; after the storm every job
comes to its end, and every counter is what stores were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol, cast

from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.lifecycle import State
from holdfast.records import JobQuery, NewJob

from .flight import Air, Message
from .keepers import Journal, Keeper

STEPS = 120
JOBS = 7
WORKERS = 2
ROUNDS_MAX = 400
SETTLING_MAX = 12  # rounds of the loop: a keeper takes fewer from one message to the next
KINDS: tuple[dict[str, object], ...] = ({}, {"max_stalls": 0}, {"group": "g"}, {"group": "g", "max_stalls": 0})
CHAINED: tuple[dict[str, object], ...] = (*KINDS, {"group": "h"}, {"group": "g"}, {"group": "g"}, {"group": "g"})


class Scene(Protocol):
    """Where a walk takes place."""

    async def connect(self, air: Air) -> Backend:
        """A connection of its own, as every worker has."""

    def stores(self) -> Sequence[Backend]:
        """The stores themselves, for an outsider who sweeps."""


class InFlight:
    """One walk."""

    def __init__(self, scene: Scene, seed: int, start: float) -> None:
        self.scene, self.seed, self.dice = scene, seed, Random(seed)
        self.chains = seed % 2 == 1  # keepers ask for chains in every other walk
        self.journal = Journal()
        self.air = Air(start, self.journal.watch)
        self.queue = f"q{seed}"
        self.keepers: list[Keeper] = []
        self.made = 0
        self.moves: list[tuple[int, Callable[[], Awaitable[None] | None]]] = [
            (10, self.act),
            (10, self.finish),
            (14, self.carry_out),
            (12, self.answer),
            (4, self.give_up),
            (1, self.refuse),
            (2, self.double),
            (1, self.time_out),
            (2, self.wait),
            (1, self.sweep),
        ]

    @property
    def now(self) -> float:
        return self.air.now

    async def run(self) -> None:
        producer = await self.scene.connect(self.air)
        for _ in range(WORKERS):
            await self.new_keeper()
        await self.enqueue(producer)
        self.air.calm = False
        weights = [weight for weight, _ in self.moves]
        for _ in range(STEPS):
            move = self.dice.choices([move for _, move in self.moves], weights)[0]
            done = move()
            if done is not None:
                await done
            await self.settle_down()
        await self.end_well()
        await self.check(producer)

    async def settle_down(self) -> None:
        """Everybody goes on until they wait for a message; what failed in an activity fails the walk."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # of everybody who can go on
        for _ in range(SETTLING_MAX):
            await asyncio.sleep(0)
            if not ready:
                break
        for keeper in list(self.keepers):
            for task in keeper.tasks.values():
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise cast(BaseException, task.exception())
            if keeper.gone and not self.air.calm:
                self.keepers.remove(keeper)
                await self.new_keeper()

    async def new_keeper(self) -> None:
        """A worker, perhaps in place of one that is gone. Until it is registered it does nothing else."""
        self.made += 1
        backend = await self.scene.connect(self.air)
        name = f"w{self.seed}-{self.made}"
        keeper = Keeper(name, backend, (self.queue,), self.journal, self.dice, chains=self.chains)
        self.keepers.append(keeper)
        keeper.do("register", lambda: self.now)

    async def enqueue(self, producer: Backend) -> None:
        kinds = CHAINED if self.chains else KINDS
        jobs = [
            NewJob(id=f"j{self.seed}-{n}", task="work", queue=self.queue, **self.dice.choice(kinds))  # type: ignore[arg-type]
            for n in range(JOBS)
        ]
        for job in jobs:
            job = job if job.group is None else replace(job, group=f"{job.group}{self.seed}")
            self.journal.jobs[job.id] = job
            await producer.enqueue([job], now=self.now)

    # ------------------------------------------------------------------ moves

    def act(self) -> None:
        keeper = self.dice.choice(self.keepers)
        what = self.dice.choice(("exchange", "exchange", "renew"))
        if not (keeper.gone or keeper.busy(what) or keeper.busy("register")):
            keeper.do(what, lambda: self.now)

    def finish(self) -> None:
        running = [(keeper, lease) for keeper in self.keepers for lease in keeper.handlers.values()]
        if running and self.dice.random() < 0.5:
            keeper, lease = self.dice.choice(sorted(running, key=lambda one: one[1].id))
            ways = ("ok", "ok", "ok", "failed") if lease.max_stalls == 0 else ("ok", "ok", "failed", "release")
            keeper.finish(lease, self.dice.choice(ways))

    def _some(self, want: Callable[[Message], bool]) -> Message | None:
        among = self.air.of(want)
        return self.dice.choice(among) if among else None

    async def carry_out(self) -> None:
        message = self._some(lambda one: not one.carried_out)
        if message is not None:
            await self.air.carry_out(message)
            if self.dice.random() < 0.6:
                self.air.answer(message)

    def answer(self) -> None:
        message = self._some(lambda one: one.carried_out > 0 and one.awaited)
        if message is not None:
            self.air.answer(message)

    def give_up(self) -> None:
        message = self._some(lambda one: one.awaited)
        if message is not None:
            self.air.give_up(message)

    def refuse(self) -> None:
        message = self._some(lambda one: one.awaited and not one.carried_out)
        if message is not None:
            self.air.refuse(message)

    async def double(self) -> None:
        message = self._some(lambda one: one.carried_out == 1)
        if message is not None:
            await self.air.carry_out(message)

    def time_out(self) -> None:
        keeper = self.dice.choice(self.keepers)
        asking = [task for task in keeper.asking.values() if not task.done()]
        if asking:
            self.dice.choice(asking).cancel()

    def wait(self) -> None:
        self.air.now += self.dice.choice((0.5, 2.0, 2.0, 9.0))
        for keeper in self.keepers:
            keeper.fence(self.now)

    async def sweep(self) -> None:
        for store in self.scene.stores():
            self.journal.recovered(await store.recover(now=self.now))
            await store.promote(now=self.now)

    # ------------------------------------------------------------------ the end

    async def end_well(self) -> None:
        """The storm is over. What still flies arrives or not; then all work is done."""
        for message in list(self.air.messages):
            if not message.carried_out and self.dice.random() < 0.5:
                await self.air.carry_out(message)
            if message.carried_out:
                self.air.answer(message)
            self.air.give_up(message)
            await self.settle_down()
        self.air.calm = True
        for _ in range(ROUNDS_MAX):
            if len(self.journal.finished) == len(self.journal.jobs):
                return
            for message in [one for one in self.air.messages if one.awaited]:
                self.air.give_up(message)
            await self.a_quiet_round()
        left = sorted(set(self.journal.jobs) - self.journal.finished)
        raise AssertionError(f"nobody runs {left}")

    async def a_quiet_round(self) -> None:
        for keeper in self.keepers:
            if keeper.gone or keeper.busy("register"):
                continue
            for lease in list(keeper.handlers.values()):
                keeper.finish(lease, "ok")
            for what in ("exchange", "renew"):
                if not (keeper.gone or keeper.busy(what)):
                    keeper.do(what, lambda: self.now)
                while waiting := [task for task in keeper.tasks.values() if not task.done()]:
                    await asyncio.wait(waiting)
        await self.settle_down()
        if all(keeper.gone for keeper in self.keepers):
            await self.new_keeper()
        self.wait()
        await self.sweep()

    async def leave(self) -> None:
        """Nothing of this walk goes on."""
        for keeper in self.keepers:
            keeper.end()
        for message in self.air.messages:
            message.reply.cancel()
        await asyncio.sleep(0)

    async def check(self, producer: Backend) -> None:
        for keeper in self.keepers:
            keeper.end()
            await keeper.backend.retire(keeper.name, now=self.now)
        found = {job.id: job for job in await producer.find(JobQuery(queue=self.queue, limit=10 * JOBS))}
        assert set(found) == set(self.journal.jobs)
        for job_id, job in found.items():
            counted = (job.attempts, job.failures)
            assert counted == self.journal.expected(job_id), f"{job_id}: {counted}, not {self.journal.expected(job_id)}"
            assert job.state in (State.SUCCEEDED, State.DEAD), f"{job_id} is {job.state}"


def walk(scene: Scene, seed: int, loop: asyncio.AbstractEventLoop, start: float) -> float:
    """Walk once. Returns the time at which the next walk on the same store may begin."""
    one = InFlight(scene, seed, start)
    try:
        loop.run_until_complete(one.run())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        loop.run_until_complete(one.leave())
    return one.now + 1.0
