"""All simulated figures of docs/scale.md: computed by `bench/scale page`, stored beside the measured figures.

Deterministic: the same measured figures give the same predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .fits import Line
from .paper import SAFE, effective_cores, one_by_one, typical_placing
from .planning import Costs, Outcome, Plan
from .recorded import costs_of, line_of
from .simulation import simulate

WORKERS = (1, 2, 4, 8, 16)
TARGETS = (1_000, 10_000, 20_000, 50_000, 100_000)
LOADS = (100, 300, 1_000, 3_000, 10_000)
RTT = 0.0005  # seconds between machines of one site
LOCAL_RTT = 0.00005


@dataclass(frozen=True)
class Choice:
    """A store of a size that can be rented."""

    name: str
    store: str
    cores: int = 1
    nodes: int = 1
    shards: int = 1
    even: bool = False  # slots were moved until every node had the same number of shards

    def plan(self, costs: Costs, workers: int) -> Plan:
        cores = effective_cores(self.cores) if self.store == "postgres" else 1
        rtt = LOCAL_RTT if self.store == "sqlite" else RTT
        return Plan(
            costs=costs,
            workers=workers,
            runners=2,
            cores=cores,
            nodes=self.nodes,
            shards=self.shards,
            placing=() if self.even else typical_placing(self.shards, self.nodes),
            rtt=rtt,
            seconds=0.8,
            warm_up=0.8,
        )


CHOICES = [
    Choice("SQLite, one machine", "sqlite"),
    Choice("Redis", "redis"),
    Choice("PostgreSQL, 4 cores", "postgres", cores=4),
    Choice("PostgreSQL, 16 cores", "postgres", cores=16),
    Choice("Cluster, 3 nodes, 12 shards", "cluster", nodes=3, shards=12),
    Choice("Cluster, 6 nodes, 24 shards", "cluster", nodes=6, shards=24),
    Choice("Cluster, 16 nodes, 64 shards placed evenly", "cluster", nodes=16, shards=64, even=True),
]


def told(outcome: Outcome) -> dict[str, Any]:
    """Rounded to meaningful digits, so that the record does not change with the last digit."""
    return {
        "jobs_per_second": round(outcome.jobs_per_second),
        "jobs_per_call": round(outcome.jobs_per_call, 1),
        "p50_ms": round(1000 * outcome.latency_p50, 2),
        "p99_ms": round(1000 * outcome.latency_p99, 2),
        "used": {part: round(share, 2) for part, share in outcome.used.items()},
        "saturated": outcome.saturated,
    }


def check_run(costs: Costs, line: Line, run: dict[str, Any], machine: int, nodes: int) -> dict[str, Any]:
    """Simulates a measured run with what other work left of the machine, and the disk's speed at that time."""
    left = max(0.1, machine - run["others_cores"])
    cores = max(1, round(left))  # a process that runs alone gets one core of what is left, if there is one
    plan = Plan(
        costs=replace(costs, sync=run["sync"] / 1e6) if costs.sync else costs,
        workers=run["workers"],
        runners=run["runners"],
        slots=run["slots"],
        handler=run["handler"],
        nodes=nodes,
        shards=run["shards"],
        cores=machine,
        machine=cores,
        speed=min(1.0, left / cores),
        rtt=0.0,
        sustained=False,
        seconds=4.0,
    )
    outcome = simulate(plan)
    calls = 1 / outcome.jobs_per_call
    server = 1e6 * (line.job + line.call * calls)
    return {**told(outcome), "calls_per_job": round(calls, 5), "server": round(server, 1)}


def checks(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Simulates every measured run. The cost line is the one measured without workers."""
    machine, found = measured["machine"]["cores"], {}
    for name, store in measured["stores"].items():
        costs, nodes = costs_of(name, measured), 3 if name == "cluster" else 1
        line = line_of(measured["stores"]["redis" if name == "cluster" else name]["exchange"]["server"])
        found[name] = [check_run(costs, line, run, machine, nodes) for run in store["workers"]]
    return found


def curves(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Jobs per second by number of workers, no-op jobs, enqueueing and pruning included."""
    return {
        choice.name: [
            {"workers": workers, **told(simulate(choice.plan(costs_of(choice.store, measured), workers)))}
            for workers in WORKERS
        ]
        for choice in CHOICES
    }


def patient(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same stores with jobs that wait 100 ms and end one by one, and more slots than the store can fill."""
    found = {}
    for choice in CHOICES:
        workers = 4 if choice.store == "sqlite" else 16
        plan = choice.plan(costs_of(choice.store, measured), workers)
        found[choice.name] = told(simulate(replace(plan, handler=0.1, slots=2000)))
    return found


def latencies(measured: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Enqueue to start, four workers (SQLite: one), jobs that are enqueued one by one and take 10 ms."""
    found = {}
    for choice in CHOICES[:3]:
        workers = 1 if choice.store == "sqlite" else 4
        plan = replace(choice.plan(costs_of(choice.store, measured), workers), handler=0.01, seconds=3.0)
        found[choice.name] = [{"offered": load, **told(simulate(replace(plan, offered=float(load))))} for load in LOADS]
    return found


def groups(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Eight workers on jobs of strict groups; a queue with a limit; one hot group by arithmetic."""
    found: dict[str, dict[str, Any]] = {}
    for choice in CHOICES[:3]:
        costs = costs_of(choice.store, measured)
        plan = choice.plan(costs, 1 if choice.store == "sqlite" else 8)
        rows = {f"{number:,} group{'s' * (number > 1)}": replace(plan, groups=number) for number in (1, 100, 10_000)}
        rows |= {"no groups": plan, "no groups, queue with a limit": replace(plan, limited=choice.store == "postgres")}
        found[choice.name] = {name: told(simulate(row)) for name, row in rows.items()}
        found[choice.name]["one by one"] = {"jobs_per_second": round(one_by_one(costs, plan.rtt))}
    return found


def advice(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each rate, the stores that carry it at SAFE of their ceiling, and how many workers that takes."""
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
        "patient": patient(measured),
        "latencies": latencies(measured),
        "groups": groups(measured),
        "advice": advice(found),
    }
