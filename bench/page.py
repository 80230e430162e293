"""Writes docs/benchmarks.md and its plots from what bench/run wrote. Called by bench/report.

Changes only the text between pairs of markers on the page, docs/images/bench-*.svg, and measured.json, which keeps the
figures of the page: a later run of some scenarios replaces these and leaves the others. Every number comes from the
files; the sentences around them are written by hand on the page itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generate import replaced

from . import drawing, table
from .drawing import Bar
from .goals import FIRST_BY, OF_LIMIT, firsts, reached

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
IMAGES = DOCS / "images"
MEASURED = Path(__file__).resolve().parent / "measured.json"
DIGITS = 4  # of a figure that is kept
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis", "cluster": "Redis Cluster"}
CLAIM_LIMIT = 1.3

FIRST_HEADS = [
    "", "rounds", "Holdfast", "of the limit", "best Python peer", "its figure", "Holdfast ÷ it", "CPU µs/job",
    "its CPU µs/job", f"≥ {FIRST_BY} × or ≥ {OF_LIMIT} of the limit",
]  # fmt: skip

FROM_ROUNDS = ("real", "load")

Report = Mapping[str, Any]


def merged(reports: list[Report]) -> Report:
    """Later ones replace what earlier ones say about the same store and scenario."""
    stores: dict[str, dict[str, Any]] = {}
    for report in reports:
        for store, records in report["stores"].items():
            stores.setdefault(store, {}).update(records)
    return {**reports[-1], "stores": stores}


def kept(report: Report) -> Report:
    """What the page needs of a report: figures of single rounds only where ratios are still taken from them."""
    stores: dict[str, dict[str, Any]] = {}
    for store, records in report["stores"].items():
        for name, record in records.items():
            cases = {
                case: one if name in FROM_ROUNDS else {key: value for key, value in one.items() if key != "rounds"}
                for case, one in record["cases"].items()
            }
            stores.setdefault(store, {})[name] = _rounded({**record, "cases": cases})
    return {**report, "stores": stores}


def written(report: Report) -> str:
    """A report as JSON with one line per store and scenario, so that a diff names what was measured again."""
    stores = []
    for store, records in report["stores"].items():
        lines = [f"{json.dumps(name)}: {json.dumps(record, ensure_ascii=False)}" for name, record in records.items()]
        stores.append(f"{json.dumps(store)}: {{\n" + ",\n".join(lines) + "\n}")
    facts = {name: value for name, value in report.items() if name != "stores"}
    return f"{json.dumps(facts)[:-1]},\n" + '"stores": {\n' + ",\n".join(stores) + "\n}}\n"


def _rounded(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.{DIGITS}g}") if isinstance(found, float) else found


# ---------------------------------------------------------------------- tables


def _records(report: Report, scenario: str) -> Iterator[tuple[str, Any]]:
    for store in STORES:
        record = report["stores"].get(store, {}).get(scenario)
        if record and record["cases"]:
            yield store, record


def machine(report: Report) -> str:
    facts, settings = report["machine"], report["settings"]
    lines = [["what", "on this run"], *([name, str(value)] for name, value in facts.items())]
    lines += [[STORES[store], record["store"]] for store, record in _records(report, "noop")]
    used = {name for records in report["stores"].values() for record in records.values() for name in record["cases"]}
    versions = [text for name, text in report["versions"].items() if name in used]
    lines += [["peers", ", ".join(versions) or "none"]]
    lines += [["jobs in a turn", f"{settings['jobs']:,}"]]
    others = [record["cores_of_others"] for records in report["stores"].values() for record in records.values()]
    lines += [["cores that others used, median", f"{statistics.median(others):.1f}"], ["made at", report["made_at"]]]
    return table.markdown(lines)


def goals(report: Report) -> str:
    """Without those of scenarios that did not run: some take an hour and have their own section, from another run."""
    lines = [["goal", "store", "bound", "measured", "reached", "on"]]
    for one in reached(report["stores"]):
        record = report["stores"][one.goal.store].get(one.goal.scenario)
        if record is None:
            continue
        value = "not measured" if one.value is None else table.number(one.value)
        verdict = "yes" if one.yes else "**no**"
        lines.append([one.goal.what, STORES[one.goal.store], one.goal.bound(), value, verdict, record["made_on"]])
    return table.markdown(lines)


def first(report: Report) -> str:
    """Our result in every row of jobs that do something, store by store, and when it was measured."""
    parts = []
    for store in STORES:
        records = report["stores"].get(store, {})
        lines = [FIRST_HEADS]
        for one in firsts(records):
            shown = [table.spread(found) if found else "" for found in (one.mine, one.limit, one.theirs, one.ratio)]
            costs = ["" if cost is None else table.number(cost) for cost in (one.cost, one.cost_of_best)]
            verdict = "yes" if one.yes else "**no**" if one.compared else "no peer"
            lines.append(
                [one.row, str(one.rounds), shown[0], shown[1], one.best or "none", shown[2], shown[3], *costs, verdict]
            )
        if len(lines) > 1:
            said = [f"`{name}` {_measured_on(records[name])}" for name in FROM_ROUNDS if name in records]
            parts += [f"**{STORES[store]}**: {'; '.join(said)}", table.markdown(lines)]
    return "\n\n".join(parts) or "Not measured in this run."


def _measured_on(record: Mapping[str, Any]) -> str:
    return f"on {record['made_on']}, cores that others used: {record['cores_of_others']:.1f}"


def tables(report: Report, scenario: str) -> str:
    parts = []
    for store, record in _records(report, scenario):
        left_out = "\n".join(f"* {line}" for line in table.left_out(record))
        head = f"**{STORES[store]}**, {record['rounds']} round{'s' * (record['rounds'] != 1)} {_measured_on(record)}"
        for title, lines in table.parts(record):
            parts += [f"{head}, {title}" if title else head, table.markdown(lines)]
        parts.append(left_out)
    return "\n\n".join(part for part in parts if part) or "Not measured in this run."


# ---------------------------------------------------------------------- plots


def _bars(record: Any, figure: str) -> list[Bar]:
    return [Bar(name, one["figures"][figure]["median"], one["kind"]) for name, one in record["cases"].items()]


def _course(report: Report, scenario: str, title: str, unit: str) -> dict[str, str]:
    """The values measured during a long run, as a line for each store."""
    series = {}
    for store, record in _records(report, scenario):
        (case,) = record["cases"].values()
        found = [(name, one["median"]) for name, one in case["figures"].items() if name.startswith("after_")]
        series[STORES[store]] = [(float(name.split("_")[1]), value) for name, value in found]
    return {f"bench-{scenario}.svg": drawing.lines(title, unit, series)} if series else {}


def plots(report: Report) -> dict[str, str]:
    """File names and their contents."""
    found: dict[str, str] = {}
    for scenario in ("noop", "groups", "workers"):
        for store, record in _records(report, scenario):
            title = f"{record['title']}, {STORES[store]}: jobs/s"
            found[f"bench-{scenario}-{store}.svg"] = drawing.bars(title, _bars(record, "jobs_per_second"))
    for store, record in _records(report, "latency"):
        bars = [
            Bar(f"{name}, {figure[:3]}", one["figures"][figure]["median"], one["kind"])
            for name, one in record["cases"].items()
            for figure in ("p50_ms", "p99_ms")
        ]
        found[f"bench-latency-{store}.svg"] = drawing.bars(f"{record['title']}, {STORES[store]}: ms", bars)
    for store, record in _records(report, "backlog"):
        bars = [
            Bar(name, ratio["median"], one["kind"])
            for name, one in record["cases"].items()
            for ratio in one["ratios"].values()
        ]
        title = f"Cost of a claim, {STORES[store]}: × that behind 1,000"
        found[f"bench-backlog-{store}.svg"] = drawing.bars(title, bars, limit=CLAIM_LIMIT)
    found |= _course(report, "memory", "Memory of a worker (MB) by jobs done", "jobs done")
    return found | _course(report, "churn", "Cost of a claim: × that in a new store", "minutes of work")


def _pictures(names: list[str], scenario: str) -> str:
    return "\n".join(f"![{name}](images/{name})" for name in names if name.startswith(f"bench-{scenario}"))


# ---------------------------------------------------------------------- the page


def regenerated(page: str, report: Report) -> str:
    """The page with every block that this report has figures for; other blocks stay as they are."""
    pictures = list(plots(report))
    known = {name for records in report["stores"].values() for name in records}
    blocks = {"machine": machine(report), "goals": goals(report)}
    if known & set(FROM_ROUNDS):
        blocks["first"] = first(report)
    for scenario in (
        "real",
        "load",
        "noop",
        "enqueue",
        "latency",
        "groups",
        "flows",
        "parts",
        "layers",
        "workers",
        "backlog",
        "growth",
        "lists",
        "churn",
        "vacuum",
        "crash",
        "memory",
        "footprint",
        "isolated",
    ):
        if scenario in known:
            blocks[scenario] = f"{_pictures(pictures, scenario)}\n\n{tables(report, scenario)}"
    for block, body in blocks.items():
        page = replaced(page, block, body, by="bench/report")
    return page


def _read(name: str) -> Report:
    try:
        found: Report = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{name} cannot be read: {error}. Give a file that bench/run --json wrote.")
    if "stores" not in found:
        sys.exit(f"{name} is not a report of bench/run: it names no stores.")
    return found


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser("bench/report", description="Writes docs/benchmarks.md and its plots.")
    parser.add_argument(
        "names", nargs="*", metavar="FILE", help="reports of bench/run --json; later ones take precedence"
    )
    before = [str(MEASURED)] if MEASURED.exists() else []
    report = kept(merged([_read(name) for name in (*before, *parser.parse_args(words).names)]))
    MEASURED.write_text(written(report))
    IMAGES.mkdir(exist_ok=True)
    for scenario in {name for records in report["stores"].values() for name in records}:
        for old in (*IMAGES.glob(f"bench-{scenario}-*.svg"), *IMAGES.glob(f"bench-{scenario}.svg")):
            old.unlink()
    for name, text in plots(report).items():
        (IMAGES / name).write_text(text)
    PAGE.write_text(regenerated(PAGE.read_text(), report))
    lines = [one.yes for one in reached(report["stores"]) if one.value is not None]
    lines += [one.yes for records in report["stores"].values() for one in firsts(records) if one.compared]
    print(f"{sum(lines)} of {len(lines)} measured goals are reached; wrote docs/benchmarks.md")
