"""Templates: one Jinja environment with escaping always on, and what every page shares."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..inspection.explain import limit_in_force, rate_in_force
from ..lifecycle import State
from ..names import visible
from . import formats

ICONS = {
    State.SCHEDULED: "clock",
    State.WAITING: "line",
    State.READY: "ring",
    State.RUNNING: "half",
    State.SUCCEEDED: "check",
    State.CANCELLED: "slash",
    State.DEAD: "cross",
}


class Verbatim(str):
    """Text that a page contains unchanged (still escaped as HTML): what a form sends back, what is copied."""


def readable(value: Any) -> Any:
    """A text as a page shows it: characters that hide or deceive, such as bidi overrides and ANSI, are spelled out."""
    return visible(value) if type(value) is str else value


def environment() -> Environment:
    """The environment of all pages. StrictUndefined: a page that uses an undefined value fails in the tests."""
    made = Environment(
        loader=PackageLoader(__package__ or "holdfast.dashboard", "templates"),
        autoescape=True,
        finalize=readable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        num=formats.num,
        size=formats.size,
        duration=formats.duration,
        percent=formats.percent,
        rate=formats.rate,
        short=formats.short,
        short_worker=formats.short_worker,
        limit=formats.limit,
        one_line=formats.one_line,
        pretty=formats.pretty,
        coloured=formats.coloured,
        clipped=formats.clipped,
        traceback=formats.traceback,
        verbatim=Verbatim,
    )
    shared: dict[str, Any] = {"State": State, "ICONS": ICONS, "command": formats.command}
    shared |= {"limit_in_force": limit_in_force, "rate_in_force": rate_in_force}
    made.globals.update(shared)
    return made
