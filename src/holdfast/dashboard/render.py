"""Templates: one Jinja environment with escaping always on, and what every page shares."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..inspection.explain import limit_in_force, rate_in_force
from ..lifecycle import State
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


def environment() -> Environment:
    """The environment of all pages. StrictUndefined: a page that asks for what is not there fails in the tests."""
    made = Environment(
        loader=PackageLoader(__package__ or "holdfast.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        num=words.num,
        size=words.size,
        duration=words.duration,
        short=words.short,
        limit=words.limit,
        one_line=words.one_line,
        pretty=words.pretty,
        clipped=words.clipped,
        traceback=words.traceback,
    )
    shared: dict[str, Any] = {"State": State, "ICONS": ICONS, "command": words.command}
    shared |= {"limit_in_force": limit_in_force, "rate_in_force": rate_in_force}
    made.globals.update(shared)
    return made
