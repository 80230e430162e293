"""Dependencies between shards on a real cluster: the conformance cases about them, with three shards per queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from holdfast.backends.redis.cluster import ClusterBackend
from holdfast.backends.sharded.registry import Registry
from holdfast.records import QueueRule, TaskRule
from holdfast.testing.conformance import CASES, dependencies, flow_rivals, parents, settle_with, walk

from ...servers.valkey import PATIENCE_SECONDS
from ...servers.valkey_cluster import shared_cluster
from ..sharded.differing import IN_THREE, run_differing
from ..sharded.shelves import QUEUES

THEMES = (dependencies, parents, settle_with, flow_rivals)
WALK = walk.a_random_walk_with_dependencies_keeps_the_store_sound.__name__


class SpreadCluster(ClusterBackend):
    """A cluster whose queues all have three shards, declared or not."""

    shards = 3

    async def open(self) -> None:
        await super().open()

        def spread(found: Registry) -> Registry:
            for queue in QUEUES:
                found = found if queue in found.queues else found.with_queue(queue, self.shards)
            return found

        await self._shards.change(spread)

    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        await super().declare([replace(rule, shards=self.shards) for rule in rules], tasks, now)


def spread_stores() -> Callable[[str], ClusterBackend]:
    cluster = shared_cluster()
    cluster.empty()
    return lambda store: SpreadCluster(cluster.plain_url, prefix=store, call_timeout=PATIENCE_SECONDS)


def concerned() -> list[str]:
    """The cases of these themes."""
    modules = {theme.__name__ for theme in THEMES}
    return [name for name, case in CASES.items() if case.__module__ in modules or name.startswith(f"{WALK}[seed 2]")]


@pytest.mark.parametrize("case", concerned())
def test_case_over_shards(case: str) -> None:
    run_differing(case, spread_stores(), IN_THREE)
