"""Templates: one Jinja environment with escaping always on, and what every page shares."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..inspection.explain import limit_in_force, rate_in_force
from ..lifecycle import State
from ..names import visible
from . import words

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
    """Text that a page carries unchanged (still escaped as HTML): what a form sends back, what is copied."""


def readable(value: Any) -> Any:
    """A text as a page shows it: characters that hide or deceive, such as bidi overrides and ANSI, are spelled out."""
    return visible(value) if type(value) is str else value


def environment() -> Environment:
    """The environment of all pages. StrictUndefined: a page that asks for what is not there fails in the tests."""
    made = Environment(
        loader=PackageLoader(__package__ or "holdfast.dashboard", "templates"),
        autoescape=True,
        finalize=readable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        num=words.num,
        size=words.size,
        duration=words.duration,
        percent=words.percent,
        rate=words.rate,
        short=words.short,
        short_worker=words.short_worker,
        limit=words.limit,
        one_line=words.one_line,
        pretty=words.pretty,
        coloured=words.coloured,
        clipped=words.clipped,
        traceback=words.traceback,
        verbatim=Verbatim,
    )
    shared: dict[str, Any] = {"State": State, "ICONS": ICONS, "command": words.command}
    shared |= {"limit_in_force": limit_in_force, "rate_in_force": rate_in_force}
    made.globals.update(shared)
    return made
