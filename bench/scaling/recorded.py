"""Measured figures as `bench/scale measure` writes them, turned into the costs the simulation takes.

Used by bench/scale, predicting.py and page.py. Reads the recorded files and writes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .fits import Line, fitted
from .planning import Costs

MEASURED = Path(__file__).parent / "measured.json"
PREDICTED = Path(__file__).parent / "predicted.json"
MICRO = 1e-6
ARGS = "100"  # bytes of arguments of the jobs that are reckoned with


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def line_of(found: dict[str, float]) -> Line:
    return Line(found["call"] * MICRO, found["job"] * MICRO)


def one_worker(store: dict[str, Any]) -> dict[str, Any]:
    """The run of one worker with one runner and no-op jobs: there the costs of a worker are taken from."""
    found: dict[str, Any] = next(run for run in store["workers"] if run["workers"] == run["runners"] == 1)
    return found


def chores_of(store: dict[str, Any]) -> float:
    """µs of the store for all that is not an exchange: enqueued in bulk, pruned, vacuumed."""
    kept = store["kept"][ARGS]
    return float(store["enqueue"]["bulk"]["server"] + kept["prune_server"] + kept.get("vacuum_server", 0.0))


def bytes_of(store: dict[str, Any], jobs_per_call: float) -> float:
    """Bytes written per job from its enqueueing to its end, so that a crash loses nothing."""
    exchange, kept = store["exchange"]["bytes"], store["kept"][ARGS]
    per_job = exchange["job"] + exchange["call"] / jobs_per_call
    return float(store["enqueue"]["bulk"]["bytes"] + per_job + kept["prune_bytes"])


def costs_of(name: str, measured: dict[str, Any]) -> Costs:
    """What the simulation has to know of a store. A cluster's nodes cost what one Redis costs."""
    stores = measured["stores"]
    store = stores["redis" if name == "cluster" else name]
    run = one_worker(store)
    client = line_of(store["exchange"]["client"])
    keeper = Line(client.call, max(0.0, run["cpu"]["keeper"] * MICRO - client.call * run["calls_per_job"]))
    if name == "cluster":
        keeper = cluster_keeper(stores["cluster"])
    return Costs(
        exchange=line_of(store["exchange"]["server"]),
        grouped=line_of(store["grouped"]["server"]),
        keeper=keeper,
        runner=(run["cpu"]["runners"] + run["cpu"]["guard"]) * MICRO,
        chores=chores_of(store) * MICRO,
        enqueue=store["enqueue"]["single"]["server"] * MICRO,
        sync=measured["machine"]["disk"]["sync_p50"] * MICRO if name in ("postgres", "sqlite") else 0.0,
        rival=store.get("rival", {}).get("row", 0.0) * MICRO,
        threads=None if name == "postgres" else 1,
        one_writer=name == "sqlite",
        group_locks=name == "postgres",
    )


def cluster_keeper(cluster: dict[str, Any]) -> Line:
    """A keeper pays per call to each shard and per job: the line through the runs of one worker."""
    points = [
        (run["calls_per_job"], run["cpu"]["keeper"])
        for run in cluster["workers"]
        if run["workers"] == run["runners"] == 1
    ]
    line = fitted(points)  # here the "call" of the line is what does not depend on calls
    return Line(line.job * MICRO, line.call * MICRO)
