"""The doctor's findings, one per check: fine, worth a note, or wrong.

Created by machine.py, store_health.py and coverage.py, displayed by the command line. Plain values: the only decision
here is which verdict is worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

Verdict = Literal["fine", "note", "wrong"]


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    about: str  # a word or two: "schema", "clock"
    verdict: Verdict
    text: str
    next: str = ""  # what to do, if anything
    facts: Mapping[str, Any] = {}  # the same for machines


def fine(about: str, text: str, **facts: Any) -> Finding:
    return Finding(about=about, verdict="fine", text=text, facts=facts)


def note(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Worth knowing, but nothing is broken."""
    return Finding(about=about, verdict="note", text=text, next=next, facts=facts)


def wrong(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Something does not work, or a guarantee does not hold."""
    return Finding(about=about, verdict="wrong", text=text, next=next, facts=facts)


def all_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.verdict != "wrong" for finding in findings)
