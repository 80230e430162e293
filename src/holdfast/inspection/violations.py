"""Violations: what the audit reports about a broken invariant.

Yielded by the rules, displayed by callers of an audit. Frozen values; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from ..records import Flaw
from .snapshot import JobRow, Picture


class Violation(Struct, frozen=True, kw_only=True):
    """One broken invariant."""

    rule: str
    text: str
    job_id: str | None = None
    group: str | None = None


def named(flaw: Flaw) -> str:
    """A flaw as a sentence: its place, row and field, and what is wrong."""
    row = "" if flaw.id is None else f" {flaw.id}"
    field = "" if flaw.field is None else f", field {flaw.field}"
    return f"{flaw.place}{row}{field}: {flaw.text}"


Rule = Callable[[Picture], Iterator[Violation]]


def about(rule: str, job: JobRow, text: str) -> Violation:
    """A violation found in one job."""
    return Violation(rule=rule, job_id=job.id, group=job.group, text=f"job {job.id} ({job.state}) {text}")
