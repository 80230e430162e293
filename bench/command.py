"""The command line of bench/run: what to measure, and where the result goes."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import signal
import sys
import time
from pathlib import Path

from . import machine, table
from .driving import SLOTS
from .peers import BEST, PEERS
from .places import STORES
from .runner import Record, run
from .scenarios import ALL

ROUNDS, JOBS = 5, 20_000
JOBS_QUICK = 4000


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run", description="Holdfast beside its peers and the bare store.")
    parser.add_argument("--store", default="sqlite", help=f"{', '.join(STORES)}, several with commas, or all [sqlite]")
    parser.add_argument("--against", default="best", help="names of peers, best, all or none [best]")
    parser.add_argument("--scenario", default="all", help="names, or all [all]")
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help=f"[{ROUNDS}]")
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help=f"no-op jobs in a turn [{JOBS}]")
    parser.add_argument("--minutes", type=float, metavar="N", help="skip rounds for which there is no time")
    parser.add_argument("--seconds", type=float, metavar="N", help="how long a turn of real or load measures [3, 600]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there, after every scenario")
    parser.add_argument("--quick", action="store_true", help="one round of few jobs, to check that everything runs")
    parser.add_argument("--list", action="store_true", help="list scenarios and peers, then exit")
    return parser.parse_args()


def _names(words: str, known: tuple[str, ...]) -> list[str]:
    names = list(known) if words == "all" else words.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"{name!r} is not one of {', '.join(known)}")
    return names


def _list() -> None:
    lines = [["scenario", "what", "stores"]]
    lines += [[one.name, one.title, ", ".join(one.stores)] for one in ALL.values()]
    print(table.plain(lines))
    lines = [["peer", "package", "stores (* = best)"]]
    for name, peer in PEERS.items():
        stores = [f"{store}{'*' if name in BEST[store] else ''}" for store in peer.stores]
        lines.append([name, peer.packages[0], ", ".join(stores)])
    print("\n" + table.plain(lines))


def show(store: str, record: Record) -> None:
    print(f"\n{record['title']}: {store} ({record['store']})")
    if record["cases"]:
        for title, lines in table.parts(record):
            print(f"{title}\n{table.plain(lines)}" if title else table.plain(lines))
    for line in table.left_out(record):
        print(line)
    print(f"other processes on this machine used {record['cores_of_others']:.1f} cores meanwhile")


def _report(options: argparse.Namespace, rounds: int, jobs: int) -> Record:
    """The part of the report that is known before anything is measured."""
    return {
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "versions": machine.versions(),
        "settings": {
            "rounds": rounds,
            "jobs": jobs,
            "against": options.against,
            "quick": options.quick,
            "seconds": options.seconds,
            "slots": int(SLOTS),
            "peers": {name: peer.stores for name, peer in PEERS.items()},
        },
        "stores": {},
    }


def main() -> None:
    options = _options()
    if options.list:
        _list()
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and workers end; what was measured is kept
    words = options.scenario.replace("cost", "noop")  # the rounds of noop include the cost of a job
    usual = [name for name, scenario in ALL.items() if not scenario.asked_only]
    stores, scenarios = _names(options.store, STORES), usual if words == "all" else _names(words, tuple(ALL))
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    jobs = options.jobs or (JOBS_QUICK if options.quick else JOBS)
    began, report = time.monotonic(), _report(options, rounds, jobs)
    waiting = [(store, ALL[name]) for store in stores for name in scenarios if store in ALL[name].stores]
    while waiting:
        left = (options.minutes or math.inf) * 60 - (time.monotonic() - began)
        share = left * waiting[0][1].weight / sum(scenario.weight for _, scenario in waiting)
        store, scenario = waiting.pop(0)
        found = run(
            scenario, store, against=options.against, rounds=rounds, jobs=jobs, quick=options.quick, seconds_max=share,
            seconds=options.seconds,
        )  # fmt: skip
        report["stores"].setdefault(store, {})[scenario.name] = found
        report["seconds"] = round(time.monotonic() - began)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        if found["stopped"]:
            break
    for store, records in report["stores"].items():
        for record in records.values():
            show(store, record)
    print(f"\n{report['seconds']} s in all", file=sys.stderr)
