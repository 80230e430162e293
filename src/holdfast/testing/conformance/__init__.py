"""The suite every backend must pass: cases written from the contract, runnable on any store, without pytest.

Called by Holdfast's own tests and by whoever writes a backend:

    from holdfast.testing.conformance import CASES, run_case

    for name in CASES:
        run_case(name, lambda store: MyBackend(f"mystore://{store}"))

`run_case` raises AssertionError where the backend breaks the contract. The suite never sleeps, reads no clock and looks
only at answers, `get` and `dump`.
"""

from __future__ import annotations

from . import (
    bounds,
    chains,
    claim,
    commands,
    concurrency,
    cron,
    dead_letters,
    delete,
    dependencies,
    edit,
    enqueue,
    fairness,
    flow_rivals,
    formulas,
    group_rates,
    groups,
    headers,
    history,
    key_conflicts,
    key_returns,
    keys,
    lanes,
    lease,
    limits,
    move,
    orders,
    overrides,
    parents,
    pause,
    priorities,
    promote,
    queries,
    rates,
    read,
    rearrange,
    recording,
    removal,
    repeats,
    retention,
    seal,
    settle,
    settle_with,
    slow_down,
    stalls,
    steps,
    stops,
    suspects,
    texts,
    transitions,
    walk,
)
from .registry import CASES, Case, run_case
from .world import MakeBackend, World

THEMES = (
    enqueue,
    headers,
    keys,
    key_conflicts,
    promote,
    queries,
    rearrange,
    claim,
    bounds,
    lanes,
    lease,
    commands,
    settle,
    settle_with,
    repeats,
    groups,
    chains,
    stops,
    orders,
    stalls,
    suspects,
    dead_letters,
    edit,
    delete,
    dependencies,
    parents,
    steps,
    key_returns,
    pause,
    priorities,
    limits,
    overrides,
    rates,
    group_rates,
    slow_down,
    fairness,
    retention,
    cron,
    read,
    history,
    recording,
    removal,
    concurrency,
    flow_rivals,
    formulas,
    seal,
    move,
    transitions,
    texts,
    walk,
)

__all__ = ["CASES", "THEMES", "Case", "MakeBackend", "World", "run_case"]
