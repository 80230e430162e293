"""Measured figures as `bench/scale measure` writes them, turned into the costs the simulation takes.

Used by bench/scale, predicting.py and page.py. Reads the recorded files and writes nothing.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from .fits import Line
from .planning import Costs

MEASURED = Path(__file__).parent / "measured.json"
PREDICTED = Path(__file__).parent / "predicted.json"
MICRO = 1e-6
ARGS = "100"  # bytes of arguments of the jobs used for the costs


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def line_of(found: dict[str, float]) -> Line:
    return Line(found["call"] * MICRO, found["job"] * MICRO)


def one_worker(store: dict[str, Any]) -> dict[str, Any]:
    """The run of one worker with one runner and no-op jobs, from which the costs of a worker are taken."""
    runs = store["workers"]
    found: dict[str, Any] = next(run for run in runs if run["workers"] == run["runners"] == 1 and not run["handler"])
    return found


def one_waiting(store: dict[str, Any]) -> dict[str, Any]:
    """The run of one worker whose jobs wait, so that they end one by one: shows the cost of a frame."""
    found: dict[str, Any] = next(run for run in store["workers"] if run["workers"] == 1 and run["handler"])
    return found


def frames_of(store: dict[str, Any], keeper: Line) -> tuple[float, float]:
    """Additional seconds of runner and keeper for a job that is reported alone."""
    together, alone = one_worker(store)["cpu"], one_waiting(store)
    settled = keeper.job + keeper.call * alone["calls_per_job"]
    return (
        max(0.0, (alone["cpu"]["runners"] - together["runners"]) * MICRO),
        max(0.0, alone["cpu"]["keeper"] * MICRO - settled),
    )


def chores_of(store: dict[str, Any]) -> float:
    """µs of the store for everything but the exchange: bulk enqueue, prune, vacuum."""
    kept = store["kept"][ARGS]
    return float(store["enqueue"]["bulk"]["server"] + kept["prune_server"] + kept.get("vacuum_server", 0.0))


def bytes_of(store: dict[str, Any], jobs_per_call: float) -> float:
    """Bytes of durable writes per job, from its enqueue to its end."""
    exchange, kept = store["exchange"]["bytes"], store["kept"][ARGS]
    per_job = exchange["job"] + exchange["call"] / jobs_per_call
    return float(store["enqueue"]["bulk"]["bytes"] + per_job + kept["prune_bytes"])


def in_place(name: str, measured: dict[str, Any]) -> float:
    """A job's cost to the store with workers running, relative to the line: the median of the no-op runs."""
    stores = measured["stores"]
    line = stores["redis" if name == "cluster" else name]["exchange"]["server"]
    runs = [run for run in stores[name]["workers"] if not run["handler"]]
    times = [run["cpu"]["server"] / (line["job"] + line["call"] * run["calls_per_job"]) for run in runs]
    return float(statistics.median(times))


def costs_of(name: str, measured: dict[str, Any]) -> Costs:
    """What the simulation has to know about a store. Each node of a cluster costs what one Redis costs."""
    stores = measured["stores"]
    store = stores["redis" if name == "cluster" else name]
    run = one_worker(stores[name])
    call = line_of(store["exchange"]["client"]).call
    keeper = Line(call, max(0.0, run["cpu"]["keeper"] * MICRO - call * run["calls_per_job"]))
    runner_frame, keeper_frame = frames_of(store, Line(call, keeper.job))
    more = in_place(name, measured)
    return Costs(
        exchange=line_of(store["exchange"]["server"]).times(more),
        grouped=line_of(store["grouped"]["server"]).times(more),
        keeper=keeper,
        runner=(run["cpu"]["runners"] + run["cpu"]["guard"]) * MICRO,
        runner_frame=runner_frame,
        keeper_frame=keeper_frame,
        chores=chores_of(store) * more * MICRO,
        enqueue=store["enqueue"]["single"]["server"] * more * MICRO,
        sync=sync_of(measured) if name in ("postgres", "sqlite") else 0.0,
        rival=store.get("rival", {}).get("row", 0.0) * MICRO,
        threads=None if name == "postgres" else 1,
        one_writer=name == "sqlite",
        group_locks=name == "postgres",
    )


def sync_of(measured: dict[str, Any]) -> float:
    """How long a commit waits for the disk: the median of what was measured before each run."""
    seen = [run["sync"] for store in measured["stores"].values() for run in store["workers"]]
    return float(statistics.median(seen)) * MICRO
