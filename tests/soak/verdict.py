"""What the journals of a soak prove: overlaps, doubled at-most-once jobs, lost jobs, broken order and chains,
standstills.

Pure: it reads lists and answers a verdict. tests/soak/test_verdict.py holds it to planted faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

Line = Mapping[str, Any]
Window = tuple[float, float]


class Verdict(Struct, frozen=True, kw_only=True):
    """All figures but `starts`, `jobs` and `longest_gap` must be 0."""

    jobs: int  # acknowledged
    starts: int
    overlapped: int
    doubled: int  # at-most-once jobs that started twice
    lost: int  # acknowledged, yet unknown to the store or unfinished after the drain
    disordered: int  # strict groups in which a later job started before an earlier one
    skipped: int  # chained groups in which a job started before the one in front of it had succeeded
    violations: int  # found by the audit
    standstills: int
    longest_gap: float  # seconds without a start while the store and a worker were there

    @property
    def holds(self) -> bool:
        wrong = (self.overlapped, self.doubled, self.lost, self.disordered, self.skipped, self.violations)
        return not any(wrong) and not self.standstills and self.starts > 0


def judge(
    lines: Sequence[Line],
    acknowledged: Sequence[str],
    unfinished: Sequence[str],
    violations: int,
    *,
    outages: Sequence[Window],
    standstill_seconds: float,
) -> Verdict:
    """`lines` of all journals; `unfinished` of the acknowledged ids after the drain; `outages`: when nobody could."""
    lines = sorted(lines, key=lambda line: float(line["at"]))
    starts = [line for line in lines if line["what"] == "start"]
    gaps = [gap_without(float(one["at"]), float(other["at"]), outages) for one, other in pairwise(starts)]
    return Verdict(
        jobs=len(acknowledged),
        starts=len(starts),
        overlapped=sum(line["what"] == "overlap" for line in lines),
        doubled=_doubled(starts),
        lost=len(unfinished),
        disordered=_disordered(starts),
        skipped=_skipped(lines),
        violations=violations,
        standstills=sum(gap > standstill_seconds for gap in gaps),
        longest_gap=max(gaps, default=0.0),
    )


def gap_without(start: float, end: float, outages: Sequence[Window]) -> float:
    """The seconds between two moments that lie in no outage."""
    left, at = end - start, start
    for opened, closed in sorted(outages):
        opened, closed = max(opened, at), min(closed, end)
        if closed > opened:
            left -= closed - opened
            at = closed
    return left


def _doubled(starts: Sequence[Line]) -> int:
    seen: dict[str, int] = defaultdict(int)
    for line in starts:
        if line["kind"] == "once":
            seen[line["job"]] += 1
    return sum(times > 1 for times in seen.values())


def _disordered(starts: Sequence[Line]) -> int:
    """A retry repeats its own number; otherwise numbers of a strict group only grow."""
    latest: dict[str, int] = {}
    wrong = set()
    for line in starts:
        if line["kind"] == "strict":
            if line["number"] < latest.get(line["group"], 0):
                wrong.add(line["group"])
            latest[line["group"]] = max(latest.get(line["group"], 0), line["number"])
    return len(wrong)


def _skipped(lines: Sequence[Line]) -> int:
    """Jobs of a chained group are numbered one by one. After a crash it goes back to jobs that had succeeded."""
    latest: dict[str, tuple[int, str]] = {}
    ended: set[str] = set()
    wrong = set()
    for line in lines:
        if line.get("kind") != "chain":
            continue
        if line["what"] == "end":
            ended.add(line["job"])
        elif line["what"] == "start":
            group, number = line["group"], line["number"]
            before, job = latest.get(group, (number - 1, ""))
            if number > before + 1 or (number == before + 1 and job and job not in ended):
                wrong.add(group)
            latest[group] = (number, line["job"])
            ended.discard(line["job"])
    return len(wrong)
