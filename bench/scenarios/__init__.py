"""All scenarios by name, in the order they are run."""

from __future__ import annotations

from ..scenario import Scenario
from . import (
    backlog,
    churn,
    crash,
    enqueue,
    flows,
    footprint,
    groups,
    growth,
    isolated,
    latency,
    layers,
    lists,
    load,
    memory,
    noop,
    parts,
    real,
    vacuum,
    workers,
)

ALL: dict[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        real,
        noop,
        enqueue,
        latency,
        groups,
        flows,
        parts,
        layers,
        workers,
        isolated,
        memory,
        footprint,
        crash,
        backlog,
        growth,
        lists,
        load,
        churn,
        vacuum,
    )
}
