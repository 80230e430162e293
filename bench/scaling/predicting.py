"""Everything docs/scale.md says that is simulated: run once by `bench/scale page`, kept beside the measured figures.

Deterministic: the same measured figures give the same predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .paper import SAFE, effective_cores, one_by_one
from .planning import Costs, Outcome, Plan
from .recorded import costs_of
from .simulation import simulate

WORKERS = (1, 2, 4, 8, 16, 32, 64)
TARGETS = (1_000, 10_000, 20_000, 50_000, 100_000)
LOADS = (100, 300, 1_000, 3_000, 10_000)
RTT = 0.0005  # seconds between machines of one site
LOCAL_RTT = 0.00005


@dataclass(frozen=True)
class Choice:
    """A store of a size, as one may rent it."""

    name: str
    store: str
    cores: int = 1
    nodes: int = 1
    shards: int = 1

    def plan(self, costs: Costs, workers: int) -> Plan:
        cores = effective_cores(self.cores) if self.store == "postgres" else 1
        rtt = LOCAL_RTT if self.store == "sqlite" else RTT
        return Plan(costs=costs, workers=workers, runners=2, cores=cores, nodes=self.nodes, shards=self.shards, rtt=rtt)


CHOICES = [
    Choice("SQLite, one machine", "sqlite"),
    Choice("Redis", "redis"),
    Choice("PostgreSQL, 4 cores", "postgres", cores=4),
    Choice("PostgreSQL, 16 cores", "postgres", cores=16),
    Choice("Cluster, 3 nodes, 12 shards", "cluster", nodes=3, shards=12),
    Choice("Cluster, 6 nodes, 24 shards", "cluster", nodes=6, shards=24),
    Choice("Cluster, 12 nodes, 48 shards", "cluster", nodes=12, shards=48),
]


def told(outcome: Outcome) -> dict[str, Any]:
    """Rounded to what can be meant, so that the record does not change with the last digit."""
    return {
        "jobs_per_second": round(outcome.jobs_per_second),
        "jobs_per_call": round(outcome.jobs_per_call, 1),
        "p50_ms": round(1000 * outcome.latency_p50, 2),
        "p99_ms": round(1000 * outcome.latency_p99, 2),
        "used": {part: round(share, 2) for part, share in outcome.used.items()},
        "saturated": outcome.saturated,
    }


def check_run(costs: Costs, run: dict[str, Any], machine: int, nodes: int) -> dict[str, Any]:
    """The simulation of a measured run, on a machine that gives us what others left of it."""
    left = max(0.1, machine - run["others_cores"])
    plan = Plan(
        costs=costs, workers=run["workers"], runners=run["runners"], slots=run["slots"], handler=run["handler"],
        nodes=nodes, shards=run["shards"], cores=machine, machine=machine, speed=left / machine, rtt=0.0,
        sustained=False, seconds=4.0,
    )  # fmt: skip
    outcome = simulate(plan)
    calls = 1 / outcome.jobs_per_call
    return {
        **told(outcome),
        "calls_per_job": calls,
        "server": 1e6 * (costs.exchange.job + costs.exchange.call * calls),
    }


def checks(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    machine = measured["machine"]["cores"]
    return {
        name: [
            check_run(costs_of(name, measured), run, machine, 3 if name == "cluster" else 1) for run in store["workers"]
        ]
        for name, store in measured["stores"].items()
    }


def curves(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Jobs per second by number of workers, no-op jobs, enqueueing and pruning included."""
    return {
        choice.name: [
            {"workers": workers, **told(simulate(choice.plan(costs_of(choice.store, measured), workers)))}
            for workers in WORKERS
        ]
        for choice in CHOICES
    }


def latencies(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Enqueue to start, four workers, jobs that are enqueued one by one and take 10 ms."""
    found = {}
    for choice in CHOICES[:3]:
        plan = replace(choice.plan(costs_of(choice.store, measured), 4), handler=0.01)
        found[choice.name] = [{"offered": load, **told(simulate(replace(plan, offered=float(load))))} for load in LOADS]
    return found


def groups(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Eight workers on jobs of strict groups; a queue with a limit; one hot group by arithmetic."""
    found: dict[str, dict[str, Any]] = {}
    for choice in CHOICES[:3]:
        costs = costs_of(choice.store, measured)
        plan = choice.plan(costs, 1 if choice.store == "sqlite" else 8)
        rows = {f"{number:,} groups": replace(plan, groups=number) for number in (1, 100, 10_000)}
        rows |= {"no groups": plan, "no groups, queue with a limit": replace(plan, limited=choice.store == "postgres")}
        found[choice.name] = {name: told(simulate(row)) for name, row in rows.items()}
        found[choice.name]["one by one"] = {"jobs_per_second": round(one_by_one(costs, plan.rtt))}
    return found


def advice(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each rate the stores that carry it at SAFE of their ceiling, and how many workers that takes."""
    rows = []
    for target in TARGETS:
        for name, curve in found.items():
            carrying = [point["workers"] for point in curve if SAFE * point["jobs_per_second"] >= target]
            if carrying:
                rows.append({"target": target, "store": name, "workers": carrying[0]})
    return rows


def predicted(measured: dict[str, Any]) -> dict[str, Any]:
    found = curves(measured)
    return {
        "checks": checks(measured),
        "curves": found,
        "latencies": latencies(measured),
        "groups": groups(measured),
        "advice": advice(found),
    }
