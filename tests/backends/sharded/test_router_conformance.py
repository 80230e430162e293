"""Every conformance case over memory shards.

Where a queue is one shard the router differs from a plain store only in what spans queues (BY_QUEUE). Where a queue is
three, it differs in what IN_THREE names, and in that it must.

A cluster is such a router, too: one shard per queue, on real nodes. What the whole run has on it
(test_cluster_conformance) is only repeated by that form over memory, for machines without servers, or little time.
"""

from __future__ import annotations

import pytest

from holdfast.backends.contract import Backend, Reader
from holdfast.backends.redis.cluster import ClusterBackend
from holdfast.backends.sharded.backend import ShardedBackend
from holdfast.testing.conformance import CASES

from ...conformance.lines import ALIKE, TURNS
from .differing import BY_QUEUE, IN_THREE, run_differing, unknown
from .shelves import memory_stores


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.turn if case in ALIKE else pytest.mark.repeat) for case in CASES],
)
def test_case(case: str) -> None:
    run_differing(case, memory_stores(), BY_QUEUE)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.turn) if case in TURNS else case for case in CASES]
)
def test_case_in_three_shards(case: str) -> None:
    run_differing(case, memory_stores(3), IN_THREE)


def test_every_difference_is_about_a_case() -> None:
    assert not unknown(BY_QUEUE) | unknown(IN_THREE)


def test_a_cluster_has_its_verbs_from_the_router() -> None:
    verbs = [name for name in {**vars(Reader), **vars(Backend)} if not name.startswith("_")]
    own = {name for name in verbs if getattr(ShardedBackend, name, None) is not getattr(ClusterBackend, name, None)}
    assert own <= {"open", "close", "migrate", "scheme", "durable", "any_loop"}
