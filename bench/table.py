"""Formats a record as text or Markdown tables. Pure. Used by bench/run for the terminal and by page.py for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADS = {
    "worker_us": "worker CPU µs/job",
    "server_us": "server CPU µs/job",
    "calls": "store calls/job",
    "bytes": "bytes written/job",
    "p90_ms": "p90 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "max_ms": "max ms",
    "exchange_ms": "exchange ms",
    "call_ms": "call ms",
    "most_mb": "most MB",
    "jobs_per_exchange": "jobs/exchange",
    "enqueue_us": "enqueue µs",
    "heard_us": "until asked µs",
    "within_us": "exchange µs/job",
    "between_us": "between µs/job",
    "start_us": "to the handler µs",
}


DEFAULTS = ", defaults"  # suffix of families whose contenders run as installed
KINDS = ("ours", "peer", "floor")


def number(value: float) -> str:
    """A number with as many digits as are meaningful."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4f}"


def spread(found: Mapping[str, float]) -> str:
    shown = number(found["median"])
    least, most = number(found["min"]), number(found["max"])
    return shown if least == most else f"{shown} ({least}–{most})"


def rows(record: Mapping[str, Any]) -> list[list[str]]:
    """The header, then a row per case: the figure with its spread, further columns, the ratio to each baseline."""
    cases: Mapping[str, Any] = record["cases"]
    columns = [name for name in record["columns"] if any(name in one["figures"] for one in cases.values())]
    baselines = list(dict.fromkeys(name for one in cases.values() for name in one["ratios"]))
    ratios = ["ratio"] if _one_each(cases) else [f"÷ {name}" for name in baselines]
    heads = ["", record["unit"], *(HEADS.get(name, name) for name in columns), *(ratios if baselines else [])]
    lines = [heads]
    for name, one in cases.items():
        line = [name, spread(one["figures"][record["figure"]])]
        line += [number(one["figures"][column]["median"]) if column in one["figures"] else "" for column in columns]
        if baselines and _one_each(cases):
            line.append("".join(f"{spread(ratio)} × {other}" for other, ratio in one["ratios"].items()))
        else:
            line += [spread(one["ratios"][other]) if other in one["ratios"] else "" for other in baselines]
        lines.append(line)
    return lines


def parts(record: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """The tables of a record with their titles. Usually one; if the same contenders are in many families, some of them
    as installed, one per figure with a row per contender and a column per family.
    """
    if not any(one.get("family", "").endswith(DEFAULTS) for one in record["cases"].values()):
        return [("", rows(record))]
    titles = [(record["figure"], record["unit"]), *((name, HEADS.get(name, name)) for name in record["columns"])]
    found = []
    for figure, title in titles:
        found.append((title, matrix(record, figure, defaults=False)))
        found.append((f"{title}, everybody as installed", matrix(record, figure, defaults=True)))
    return [(title, lines) for title, lines in found if any(any(line[1:]) for line in lines[1:])]


def matrix(record: Mapping[str, Any], figure: str, *, defaults: bool) -> list[list[str]]:
    cases = [one for one in record["cases"].values() if one["family"].endswith(DEFAULTS) == defaults]
    families = list(dict.fromkeys(one["family"] for one in cases))
    cells = {(one["label"], one["family"]): spread(one["figures"][figure]) for one in cases if figure in one["figures"]}
    labels = list(dict.fromkeys(one["label"] for one in sorted(cases, key=lambda one: KINDS.index(one["kind"]))))
    heads = ["", *(family.removesuffix(DEFAULTS) for family in families)]
    return [heads, *([label, *(cells.get((label, family), "") for family in families)] for label in labels)]


def _one_each(cases: Mapping[str, Any]) -> bool:
    """No case is compared with more than one other, and not all with the same one: one column is enough."""
    compared = [tuple(one["ratios"]) for one in cases.values() if one["ratios"]]
    return len(set(compared)) > 1 and all(len(one) == 1 for one in compared)


def left_out(record: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {reason.splitlines()[0]}" for name, reason in record["left_out"].items()]


def plain(lines: Sequence[Sequence[str]]) -> str:
    """For a terminal."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    shown = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        shown.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(shown)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    heads, *rest = lines
    marks = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, marks, *rest))
