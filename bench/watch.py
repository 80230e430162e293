"""The guard: checks that Holdfast is as close to the bare store as it was. Runs at the end of a whole ./check.

Measures `holdfast work` with one runner and the bare store in turn, in batches of the same size, on servers of its own,
for half a minute at most. Compares only ratios, which do not depend on the machine's speed. bench/guard --record
records them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .driving import SLOTS, Contender, Failed, drained, floor, ours, turn
from .judging import best, judge, settled
from .places import Place, opened

RECORD = Path(__file__).parent / "guard.json"
STORES = ("sqlite", "postgres", "redis")
BUDGET_SECONDS = 24.0  # after this no further round starts,
PATIENCE_SECONDS = 60.0  # and after this no further store: the machine is too busy to measure anything
ROUNDS_MAX = 3
JOBS, JOBS_BARE = 15_000, 60_000


def _needs(place: Place, contender: Contender, jobs: int) -> dict[str, float]:
    """Per job: time, and processor time of worker and server."""
    with place.area() as area, turn(contender, area) as one:
        found = drained(one, jobs, seconds_max=60.0)
    needs = {"time": 1 / found["jobs_per_second"]}
    return needs | ({"processor": found["worker_us"] + found["server_us"]} if "worker_us" in found else {})


def _ratios(store: str, place: Place) -> dict[str, float]:
    mine = _needs(place, ours(), JOBS)
    bare = _needs(place, floor(store, BARE_BATCH=SLOTS), JOBS_BARE)
    return {name: mine[name] / bare[name] for name in mine if bare.get(name)}


def measure(recorded: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The best ratios by store. Each round measures only the stores that are not yet fine compared with the record."""
    began = time.monotonic()
    rounds: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        places: dict[str, Place] = {}
        for store in STORES:
            try:
                places[store] = stack.enter_context(opened(store))
            except (ImportError, OSError, RuntimeError) as error:  # no server for this machine
                print(f"bench/guard: {store} skipped: {error}", file=sys.stderr)
        for number in range(ROUNDS_MAX):
            for store, place in places.items():
                if store in rounds and settled(best(rounds[store]), recorded.get(store, {})):
                    continue
                if time.monotonic() - began < (BUDGET_SECONDS if number else PATIENCE_SECONDS):
                    try:
                        rounds.setdefault(store, []).append(_ratios(store, place))
                    except Failed as failure:
                        sys.exit(f"bench/guard: {store}: {failure}")
    return {store: best(found) for store, found in rounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/guard", description="As near to the bare store as it was?")
    parser.add_argument("--record", action="store_true", help=f"record this run's ratios in bench/{RECORD.name}")
    options = parser.parse_args()
    if not Path("/proc/self/schedstat").exists():
        print("bench/guard: skipped: processor times are read from Linux's /proc")
        return
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = measure({} if options.record else recorded)
    if options.record:
        rounded = {store: {name: round(value, 2) for name, value in one.items()} for store, one in found.items()}
        RECORD.write_text(json.dumps(rounded, indent=2) + "\n")
        recorded = rounded
    verdicts = [verdict for store, one in found.items() for verdict in judge(store, one, recorded.get(store, {}))]
    for verdict in verdicts:
        print(f"bench/guard: {'' if verdict.level == 'fine' else verdict.level.upper() + ': '}{verdict.line}")
    if any(verdict.level == "failure" for verdict in verdicts):
        sys.exit(1)
