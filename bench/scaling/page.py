"""The tables of docs/scale.md, between their markers, from the recorded figures. Pure: texts in, texts out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from . import paper
from .drawing import chart, short
from .predicting import CHOICES, LOADS, TARGETS, WORKERS
from .recorded import ARGS, bytes_of, costs_of, in_place

Figures = dict[str, Any]

NAMES = {"postgres": "PostgreSQL", "redis": "Redis", "cluster": "Redis Cluster", "sqlite": "SQLite"}
ONE_STORE = ("postgres", "redis", "sqlite")
NONE = "–"
BATCH = 400  # jobs in an exchange of a busy worker with 400 slots
RETAINED = {"10 minutes": 600, "1 hour": 3600, "1 day": 86400}
NODES = (3, 6, 12)
WAITING = (1_000_000, 10_000_000, 100_000_000)
PARTS = {
    "store": "the store's processor", "keeper": "the keeper", "runner": "the runners", "machine": "this machine",
    "turns": "taking turns at the file", "nothing": "nothing yet",
}  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def sized(number: float) -> str:
    """Bytes in a suitable unit."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.2g} {unit}" if number < 10 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f} B"


def rounded(number: float) -> str:
    """A rate with as much precision as it deserves: two digits."""
    if number < 100:
        return f"{number:.0f}"
    digits = len(f"{number:.0f}") - 2
    return f"{round(number / 10**digits) * 10**digits:,}"


def marked(page: str, block: str, body: str) -> str:
    """The page with the body of a block replaced."""
    opening, closing = f"<!-- generated: {block} (bench/scale page) -->", f"<!-- end: {block} -->"
    before, found, rest = page.partition(opening)
    if not found or closing not in rest:
        raise SystemExit(f"the markers of {block!r} are missing: {opening} … {closing}")
    return f"{before}{opening}\n\n{body.strip()}\n\n{closing}{rest.partition(closing)[2]}"


# ---------------------------------------------------------------------- what to run


def advice(measured: Figures, predicted: Figures) -> str:
    rows = []
    for target in TARGETS:
        fitting = [row for row in predicted["advice"] if row["target"] == target]
        kinds = {choice.name: choice.store for choice in CHOICES}
        first: dict[str, Figures] = {}
        for row in fitting:  # the smallest of each kind of store that carries it
            first.setdefault(kinds[row["store"]], row)
        named = [f"{row['store']} ({row['workers']} worker{'s' * (row['workers'] > 1)})" for row in first.values()]
        rows.append([f"{target:,}", " · ".join(named) or "more than one store"])
    return table(["jobs per second, all day", "carried by (workers of no-op jobs, two runners each)"], rows)


def retained(measured: Figures, predicted: Figures) -> str:
    rows = []
    for target in TARGETS:
        cells = []
        for seconds in RETAINED.values():
            jobs = target * seconds
            one = measured["stores"]
            disk, memory = (one[name]["kept"][ARGS]["finished"] * jobs for name in ("postgres", "redis"))
            cells.append(f"{short(jobs)}: {sized(disk)} / {sized(memory)}")
        rows.append([f"{target:,}", *cells])
    return table(["jobs per second", *(f"`retain` {name}" for name in RETAINED)], rows)


def waiting(measured: Figures, predicted: Figures) -> str:
    rows = []
    for number in WAITING:
        for name in ONE_STORE:
            kept = measured["stores"][name]["kept"]
            where = "memory" if name == "redis" else "disk"
            sizes = [f"{sized(kept[args]['waiting'] * number)} of {where}" for args in ("100", "1000")]
            entry = kept["100"].get("claim_index")
            depth = f"{paper.depth(number, entry)} pages" if entry else "–"
            indexes = sized(kept["100"]["waiting_indexes"] * number) if entry else "–"
            rows.append([short(number), NAMES[name], *sizes, indexes, depth])
    head = ["waiting", "store", "arguments of 100 B", "of 1 kB", "indexes in it", "depth of the one that claims read"]
    return table(head, rows)


# ---------------------------------------------------------------------- constants


def constants(measured: Figures, predicted: Figures) -> str:
    stores = [measured["stores"][name] for name in ONE_STORE]

    def row(what: str, figure: Callable[[Figures], str]) -> list[str]:
        return [what, *(figure(store) for store in stores)]

    def line(kind: str) -> Callable[[Figures], str]:
        return lambda store: f"{store[kind]['server']['call']:.0f} + {store[kind]['server']['job']:.1f} n"

    costs = {name: costs_of(name, measured) for name in ONE_STORE}
    rows = [
        row("measured on", lambda store: store["server"]),
        row("store: enqueue, bulk of 1,000", lambda store: f"{store['enqueue']['bulk']['server']:.1f}"),
        row("store: enqueue, one by one", lambda store: f"{store['enqueue']['single']['server']:.0f}"),
        row("store: exchange of n jobs", line("exchange")),
        row("… jobs of 5,000 strict groups", line("grouped")),
        ["… times this, beside workers", *(f"{in_place(name, measured):.2f}" for name in ONE_STORE)],
        row("store: prune", lambda store: f"{store['kept'][ARGS]['prune_server']:.1f}"),
        row("store: vacuum", lambda store: f"{store['kept'][ARGS].get('vacuum_server', 0):.1f}"),
        ["keeper: exchange of n jobs"]
        + [f"{1e6 * costs[name].keeper.call:.0f} + {1e6 * costs[name].keeper.job:.1f} n" for name in ONE_STORE],
        ["runner, per no-op job", *(f"{1e6 * costs[name].runner:.1f}" for name in ONE_STORE)],
        [
            "keeper, more for a job that ends by itself",
            *(f"{1e6 * costs[name].keeper_frame:.0f}" for name in ONE_STORE),
        ],
        ["runner, the same", *(f"{1e6 * costs[name].runner_frame:.0f}" for name in ONE_STORE)],
        ["a row that a rival has just taken", *(f"{1e6 * costs[name].rival:.1f}" for name in ONE_STORE)],
        ["wait for the disk", *(f"{1e6 * costs[name].sync:.0f}" for name in ONE_STORE)],
        row("producer: enqueue, bulk", lambda store: f"{store['enqueue']['bulk']['client']:.1f}"),
        row("bytes written from enqueue to prune", lambda store: f"{bytes_of(store, BATCH):,.0f} B"),
        row("bytes kept: waiting, 100 B / 1 kB of arguments", lambda store: _kept(store, "waiting")),
        row("bytes kept: finished", lambda store: _kept(store, "finished")),
    ]
    rows = [[cells[0], *(NONE if float_or(cell) == 0.0 else cell for cell in cells[1:])] for cells in rows]
    return table(["µs", *(NAMES[name] for name in ONE_STORE)], rows)


def float_or(text: str, other: float = 1.0) -> float:
    """The cell as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return other


def _kept(store: Figures, what: str) -> str:
    return " / ".join(f"{store['kept'][args][what]:,.0f} B" for args in ("100", "1000"))


# ---------------------------------------------------------------------- what was checked


def checks(measured: Figures, predicted: Figures) -> str:
    rows = []
    for name, store in measured["stores"].items():
        for run, guess in zip(store["workers"], predicted["checks"][name], strict=True):
            rate, cpu = run["jobs_per_second"], run["cpu"]["server"]
            rows.append(
                [
                    NAMES[name],
                    f"{run['workers']} × {run['runners']}" + (f", {run['shards']} shards" if run["shards"] > 1 else ""),
                    f"{1000 * run['handler']:g} ms" if run["handler"] else "no-op",
                    f"{run['others_cores']:.1f}",
                    f"{rate:,.0f}",
                    f"{guess['jobs_per_second']:,.0f} ({guess['jobs_per_second'] / rate - 1:+.0%})",
                    f"{1 / run['calls_per_job']:.0f}",
                    f"{1 / guess['calls_per_job']:.0f}",
                    f"{cpu:.0f}",
                    f"{guess['server']:.0f} ({guess['server'] / cpu - 1:+.0%})",
                ]
            )
    head = ["store", "workers × runners", "handler", "cores others used", "jobs/s", "simulated", "jobs per call",
            "simulated", "store's µs per job", "from the line"]  # fmt: skip
    return table(head, rows)


def errors(measured: Figures, predicted: Figures) -> str:
    """How far off the simulation is, figure by figure."""
    rows = []
    pairs = [
        pair
        for name, store in measured["stores"].items()
        for pair in zip(store["workers"], predicted["checks"][name], strict=True)
    ]
    for what, waiting in (("no-op jobs", False), ("jobs that wait 100 ms", True)):
        chosen = [(run, guess) for run, guess in pairs if bool(run["handler"]) is waiting]
        off = {
            "jobs/s": [guess["jobs_per_second"] / run["jobs_per_second"] - 1 for run, guess in chosen],
            "jobs per call": [run["calls_per_job"] / guess["calls_per_job"] - 1 for run, guess in chosen],
            "store's µs per job": [guess["server"] / run["cpu"]["server"] - 1 for run, guess in chosen],
        }
        for figure, all_off in off.items():
            middle = statistics.median(abs(one) for one in all_off)
            spread = f"{min(all_off):+.0%} … {max(all_off):+.0%}"
            rows.append([what, figure, f"{len(all_off)}", f"{middle:.0%}", spread])
    return table(["runs", "figure", "number", "median error", "range"], rows)


def balance(measured: Figures, predicted: Figures) -> str:
    rows = []
    for run in measured["stores"]["cluster"]["workers"]:
        shares = " / ".join(f"{share:.0%}" for share in run["nodes"])
        rows.append([f"{run['workers']}", f"{run['shards']}", shares, f"{run['cpu']['keeper']:.1f}"])
    return table(["workers", "shards", "share of each node in the store's work", "keeper's µs per job"], rows)


# ---------------------------------------------------------------------- what is predicted


def ceilings(measured: Figures, predicted: Figures) -> str:
    rows = []
    for choice in CHOICES:
        curve = predicted["curves"][choice.name]
        best = max(curve, key=lambda point: point["jobs_per_second"])
        enough = next(point for point in curve if point["jobs_per_second"] >= 0.9 * best["jobs_per_second"])
        store = measured["stores"]["redis" if choice.store == "cluster" else choice.store]
        written = bytes_of(store, best["jobs_per_call"]) * best["jobs_per_second"] / choice.nodes
        rows.append(
            [
                choice.name,
                rounded(curve[0]["jobs_per_second"]),
                rounded(best["jobs_per_second"]),
                f"{enough['workers']}",
                PARTS[best["saturated"]],
                rounded(predicted["patient"][choice.name]["jobs_per_second"]),
                f"{sized(written)}/s",
            ]
        )
    head = ["store", "jobs/s with one worker", "at most", "reached with workers", "used up first",
            "jobs that wait 100 ms", "written per node"]  # fmt: skip
    return table(head, rows)


def latencies(measured: Figures, predicted: Figures) -> str:
    rows = []
    for name, points in predicted["latencies"].items():
        cells = []
        for point in points:
            carried = point["jobs_per_second"] >= 0.9 * point["offered"]
            cells.append(f"{point['p50_ms']:.1f} / {point['p99_ms']:.1f}" if carried else "not carried")
        rows.append([name, *cells])
    return table(["ms, p50 / p99", *(f"{load:,} jobs/s" for load in LOADS)], rows)


def groups(measured: Figures, predicted: Figures) -> str:
    found = predicted["groups"]
    shapes = [shape for shape in next(iter(found.values())) if shape != "one by one"]
    rows = [[shape, *(rounded(found[name][shape]["jobs_per_second"]) for name in found)] for shape in shapes]
    return table(["jobs/s", *found], rows)


def shards(measured: Figures, predicted: Figures) -> str:
    """The busiest node's load relative to an even share: placed at random, and with one large group."""
    rows = []
    for number in (1, 2, 4, 8):
        cells = [f"{paper.busiest_share(number * nodes, nodes) * nodes:.1f} ×" for nodes in NODES]
        rows.append([f"{number} shard{'s' * (number > 1)} per node, placed by chance", *cells])
    for share in (0.05, 0.2):
        cells = [f"{paper.hot_share(nodes, share) * nodes:.1f} ×" for nodes in NODES]
        rows.append([f"shards placed evenly, one group with {share:.0%} of the jobs", *cells])
    return table(["", *(f"{nodes} nodes" for nodes in NODES)], rows)


BLOCKS: dict[str, Callable[[Figures, Figures], str]] = {
    "advice": advice,
    "retained": retained,
    "waiting": waiting,
    "constants": constants,
    "ceilings": ceilings,
    "latencies": latencies,
    "groups": groups,
    "shards": shards,
    "balance": balance,
    "errors": errors,
    "checks": checks,
}


def regenerated(page: str, measured: Figures, predicted: Figures) -> str:
    """The page with every table rebuilt from the figures."""
    for block, make in BLOCKS.items():
        page = marked(page, block, make(measured, predicted))
    return page


def pictures(predicted: Figures) -> dict[str, str]:
    """File name → SVG."""
    rates = {
        name: [(float(point["workers"]), float(point["jobs_per_second"])) for point in curve]
        for name, curve in predicted["curves"].items()
    }
    delays = {
        name: [(float(point["offered"]), point["p99_ms"]) for point in points if _carried(point)]
        for name, points in predicted["latencies"].items()
    }
    return {
        "scale-rates.svg": chart(
            "Predicted: jobs per second by workers", "workers (2 runners, 400 slots each)", "jobs per second", rates,
            [float(number) for number in WORKERS],
        ),
        "scale-latency.svg": chart(
            "Predicted: enqueue to start, p99", "jobs enqueued per second, one by one", "milliseconds", delays,
            [float(load) for load in LOADS],
        ),
    }  # fmt: skip


def _carried(point: Figures) -> bool:
    return bool(point["jobs_per_second"] >= 0.9 * point["offered"])
