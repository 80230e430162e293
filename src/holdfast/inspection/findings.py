"""What the doctor found, one finding per thing looked at: fine, worth a note, or wrong.

Made by machine.py, store_health.py and coverage.py, shown by the command line. Plain values: it decides nothing but
which verdict is the worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

Verdict = Literal["fine", "note", "wrong"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    about: str  # a word or two: "schema", "clock"
    verdict: Verdict
    text: str
    next: str = ""  # what to do, where there is something to do
    facts: Mapping[str, Any] = {}  # the same for machines


def fine(about: str, text: str, **facts: Any) -> Finding:
    return Finding(about=about, verdict="fine", text=text, facts=facts)


def note(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Worth knowing; nothing is broken by it."""
    return Finding(about=about, verdict="note", text=text, next=next, facts=facts)


def wrong(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Something does not work, or a promise does not hold."""
    return Finding(about=about, verdict="wrong", text=text, next=next, facts=facts)


def all_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.verdict != "wrong" for finding in findings)
