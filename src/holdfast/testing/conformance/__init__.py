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
    cron,
    dead_letters,
    ended,
    enqueue,
    expiry,
    fairness,
    flow_rivals,
    formulas,
    group_limits,
    group_rates,
    groups,
    history,
    key_conflicts,
    key_returns,
    key_transitions,
    keys,
    lanes,
    lease,
    limits,
    move,
    move_rules,
    overrides,
    pause,
    promote,
    rates,
    read,
    rearrange,
    refill,
    repeats,
    retention,
    retention_rules,
    revival,
    rivals_at_once,
    seal,
    settle,
    shares,
    slow_down,
    stale,
    stalls,
    suspects,
    task_rules,
    texts,
    transitions,
    walk,
    walk_flow,
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
    pause,
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
    cron,
    read,
    history,
    ended,
    concurrency,
    rivals_at_once,
    flow_rivals,
    formulas,
    seal,
    move,
    move_rules,
    transitions,
    key_transitions,
    texts,
    walk,
    walk_flow,
)

__all__ = ["CASES", "THEMES", "Case", "MakeBackend", "World", "run_case"]
