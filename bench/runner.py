"""Runs scenarios: rounds of cases in turn, and a record with every raw figure.

Called by bench/run and bench/guard. Reports its progress on standard error; prints no results itself.
"""

from __future__ import annotations

import datetime
import math
import os
import sys
import time
from typing import Any

from . import processes
from .driving import Failed
from .figures import Figures, ratios, summary
from .places import opened
from .scenario import Case, Scenario, Setting

Record = dict[str, Any]  # as it goes into the JSON file


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(case: Case, setting: Setting) -> Figures | None:
    began = time.monotonic()
    try:
        figures = case.measure()
    except Failed as failure:
        setting.left_out[case.name] = str(failure)
        _say(f"    {case.name}: {failure}")
        return None
    shown = ", ".join(f"{name} {value:,.2f}" for name, value in list(figures.items())[:3])
    _say(f"    {case.name}: {shown}  ({time.monotonic() - began:.1f} s)")
    return figures


def _record(cases: list[Case], rounds: dict[str, list[Figures | None]], scenario: Scenario) -> Record:
    found: Record = {}
    for case in cases:
        if not any(rounds[case.name]):
            continue
        compared: Record = {}
        for other in cases:
            if other.baseline and other.name != case.name and other.family == case.family:
                ratio = ratios(rounds[case.name], rounds[other.name], scenario.figure)
                compared |= {other.label or other.name: ratio} if ratio else {}
        found[case.name] = {
            "kind": case.kind,
            "family": case.family,
            "label": case.label or case.name,
            "rounds": rounds[case.name],
            "figures": summary(rounds[case.name]),
            "ratios": compared,
        }
    return found


def _far_behind(scenario: Scenario, cases: list[Case], found: dict[str, list[Figures | None]]) -> set[str]:
    """The peers that were so far behind ours in the first round that the others say nothing new of them."""
    ours: dict[str, float] = {}
    rates = {case.name: (found[case.name][0] or {}).get(scenario.figure) for case in cases}
    for case in cases:
        if case.kind == "ours":
            ours[case.family] = max(ours.get(case.family, 0.0), rates[case.name] or 0.0)
    least = {case.name: ours.get(case.family, 0.0) * scenario.near for case in cases if case.kind == "peer"}
    return {name for name, rate in least.items() if (rates[name] or 0.0) < rate}


def _rounds(
    scenario: Scenario, setting: Setting, cases: list[Case], rounds: int, seconds_max: float
) -> dict[str, list[Figures | None]]:
    found: dict[str, list[Figures | None]] = {case.name: [] for case in cases}
    began, behind = time.monotonic(), set[str]()
    took: dict[str, float] = {}  # what each case that goes on took in the last round

    def goes_on(case: Case, number: int) -> bool:
        return number < case.rounds_max and case.name not in setting.left_out and case.name not in behind

    for number in range(scenario.rounds(rounds)):
        expected = sum(took.get(case.name, 0.0) for case in cases if goes_on(case, number))
        if number and time.monotonic() - began + expected > seconds_max:
            _say(f"  {setting.store} {scenario.name}: no time for more rounds")
            break
        _say(f"  {setting.store} {scenario.name}: round {number + 1} of {scenario.rounds(rounds)}")
        try:
            for case in cases:
                start = time.monotonic()
                found[case.name].append(_measure(case, setting) if goes_on(case, number) else None)
                took[case.name] = time.monotonic() - start
        except KeyboardInterrupt:
            _say(f"  {setting.store} {scenario.name}: stopped; what was measured is kept")
            setting.stopped = True
            break
        if number == 0:
            behind = _far_behind(scenario, cases, found)
    return found


def run(
    scenario: Scenario,
    store: str,
    *,
    against: str,
    rounds: int,
    jobs: int,
    quick: bool,
    seconds_max: float = math.inf,
    seconds: float | None = None,
) -> Record:
    """Run one scenario on one store. Rounds after the first are skipped if they would probably take too long."""
    began, busy, used = time.monotonic(), processes.machine_seconds(), processes.processor_seconds(os.getpid())
    with opened(store, fresh=scenario.fresh) as place:
        setting = Setting(store, place, against, jobs, quick=quick, seconds=seconds)
        with scenario.cases(setting) as cases:
            found = _rounds(scenario, setting, cases, rounds, seconds_max - (time.monotonic() - began))
        lasted = time.monotonic() - began
        others = processes.machine_seconds() - busy - (processes.processor_seconds(os.getpid()) - used)
        return {
            "title": scenario.title,
            "made_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "figure": scenario.figure,
            "unit": scenario.unit,
            "more_is_better": scenario.more_is_better,
            "columns": list(scenario.columns),
            "store": place.version,
            "jobs": jobs,
            "rounds": max(map(len, found.values()), default=0),
            "stopped": setting.stopped,
            "seconds": round(lasted, 1),
            "cores_of_others": round(max(0.0, others / lasted), 2),
            "cases": _record(cases, found, scenario),
            "left_out": setting.left_out,
        }
