"""Random walks with limits, rates, slow-downs, aging and the worker's own caps, changed on the way.

Called by run_case and by tests that let two stores walk alike. All that walking does is done here, too.
"""

from __future__ import annotations

from ...rates import NO_RATE, UNLIMITED, Rate
from ...records import SERIAL_PREFIX, Exchanged, Override, QueueRule, TaskRule
from .registry import case_for_each
from .soundness import sound
from .walk import QUEUES, STEPS, TASKS, WORKERS, Walk
from .world import World

RATES = (None, Rate(2, 10.0), Rate(1, 20.0), Rate(1, 5.0, 3), Rate(30, 60.0))
GROUPS = ("a", "b", SERIAL_PREFIX + "c")


class FlowWalk(Walk):
    """A walk on which operators and deploys turn every knob."""

    groups = (None, *GROUPS)

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps += [(4, self.rule), (2, self.task_rule), (3, self.limit), (1, self.slow_down), (6, self.exchange)]

    async def exchange(self) -> object:
        worker = self._one(*WORKERS)
        await self._registered(worker)
        done = self._settlements(self._one(0, 0, 1, 2))
        back = [self._release() for _ in range(self._one(0, 0, 1))]
        request = self.world.request(
            worker,
            self._one(1, 2, 5),
            queues=self._one(QUEUES, QUEUES[::-1], QUEUES[:1]),
            most_by_queue=self._one({}, {}, {"other": 1}),
            most_by_task=self._one({}, {}, {"work": 1}, {"mail": 0}),
            most_by_group=self._one(None, None, 1, 2),
        )
        self.calls[worker] = (done, back, request)
        return self._seen(await self.world.exchange(done, back, request))

    def _seen(self, answer: Exchanged) -> object:
        seen = super()._seen(answer)
        return (*seen, answer.opens_in) if isinstance(seen, tuple) else seen

    async def rule(self) -> object:
        rule = QueueRule(
            name=self._one(*QUEUES),
            group_limit=self._one(1, 2, 3, UNLIMITED),
            group_order=self._one("strict", "relaxed", "relaxed"),
            group_rate=self._one(None, None, *RATES),
            limit=self._one(None, None, 1, 3),
            rate=self._one(None, None, *RATES),
            aging=self._one(None, None, 3.0),
        )
        await self.world.backend.declare([rule], now=self.world.now)
        return rule

    async def task_rule(self) -> object:
        rule = TaskRule(
            name=self._one(*TASKS),
            limit=self._one(None, None, 1, 2),
            rate=self._one(None, None, *RATES),
            apart=self._one(False, True),
        )
        await self.world.backend.declare([], [rule], now=self.world.now)
        return rule

    async def limit(self) -> object:
        scope = self._one(
            {"queue": self._one(*QUEUES)},
            {"queue": self._one(*QUEUES), "group": self._one(*GROUPS)},
            {"task": self._one(*TASKS)},
        )
        said = {
            **({"limit": self._one(None, 0, 1, 2, UNLIMITED)} if self.dice.random() < 0.6 else {}),
            **({"rate": self._one(NO_RATE, *RATES)} if self.dice.random() < 0.6 else {}),
        }
        await self.world.backend.limit(Override(**scope, **said), now=self.world.now)
        return scope, said

    async def wait(self) -> object:
        """Groups whose bucket has opened are woken at once: which other step happens to refill them is left open."""
        await super().wait()
        await self.world.promote_all()
        return self.world.now

    async def slow_down(self) -> object:
        seconds = self._one(2.0, 8.0, 30.0)
        return await self.world.backend.slow_down(self._one(*QUEUES), seconds, now=self.world.now)


@case_for_each(range(12), name=lambda seed: f"seed {seed}")
async def a_random_walk_with_limits_and_rates_keeps_the_store_sound(world: World, seed: int) -> None:
    walk = FlowWalk(world, seed)
    for number in range(world.sized(STEPS)):
        name, _ = await walk.step()
        await sound(world.backend, f"seed {seed}, step {number}, {name}")
