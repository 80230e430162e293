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
    aging,
    apart,
    bounds,
    claim,
    concurrency,
    dead_letters,
    ended,
    enqueue,
    expiry,
    fairness,
    flow_rivals,
    group_limits,
    group_rates,
    groups,
    key_conflicts,
    key_returns,
    key_transitions,
    keys,
    lanes,
    lease,
    limits,
    moving,
    moving_rules,
    overrides,
    pausing,
    promote,
    rates,
    reading,
    rearrange,
    refill,
    repeats,
    retention,
    retention_rules,
    revival,
    rivals_at_once,
    sealing,
    settle,
    shares,
    slow_down,
    stale,
    stalls,
    suspects,
    task_rules,
    texts,
    ticking,
    transitions,
    walking,
    walking_flow,
)
from .registry import CASES, Case, run_case
from .world import MakeBackend, World

THEMES = (
    enqueue,
    keys,
    key_conflicts,
    promote,
    rearrange,
    expiry,
    claim,
    bounds,
    lanes,
    lease,
    stale,
    settle,
    repeats,
    groups,
    group_limits,
    refill,
    stalls,
    suspects,
    dead_letters,
    revival,
    key_returns,
    pausing,
    task_rules,
    limits,
    overrides,
    rates,
    group_rates,
    slow_down,
    apart,
    shares,
    fairness,
    aging,
    retention,
    retention_rules,
    ticking,
    reading,
    ended,
    concurrency,
    rivals_at_once,
    flow_rivals,
    sealing,
    moving,
    moving_rules,
    transitions,
    key_transitions,
    texts,
    walking,
    walking_flow,
)

__all__ = ["CASES", "THEMES", "Case", "MakeBackend", "World", "run_case"]
