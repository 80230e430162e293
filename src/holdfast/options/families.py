"""Families of options as one value: `unique=Unique(…)` for a unique key, `retention=Retention(…)` for how long jobs are
kept.

Used by users in `@app.task(…)` and `task.options(…)`. A family and its single options (`key=`, `retain=`, …) are two
spellings of the same: `ungrouped` turns the first into the second, and nothing else knows families. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ..errors import ConfigurationError
from ..records import KeyScope, KeyUntil
from .checks import Duration
from .tasks import OnConflict


class Unique(Struct, frozen=True, kw_only=True):
    """One job per key at a time; the fields are the options of the same meaning."""

    key: str | Callable[..., str | None]
    on_conflict: OnConflict = "keep"
    scope: KeyScope = "queue"
    until: KeyUntil | None = None
    window: Duration | None = None
    wait: Duration | None = None
    wait_max: Duration | None = None


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished and dead jobs are kept, and how many of a task. None: no separate bound."""

    finished: Duration | None = None  # succeeded and cancelled jobs; None: a day
    finished_count: int | None = None
    dead: Duration | None = None
    dead_count: int | None = None


_FAMILIES: dict[str, tuple[type[Struct], dict[str, str]]] = {
    "unique": (Unique, {"scope": "key_scope", "until": "key_until"}),
    "retention": (
        Retention,
        {
            "finished": "retain",
            "finished_count": "retain_count",
            "dead": "retain_dead",
            "dead_count": "retain_dead_count",
        },
    ),
}


def ungrouped(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The given options with single ones in place of families."""
    if not _FAMILIES.keys() & given.keys():
        return given
    single = {name: value for name, value in given.items() if name not in _FAMILIES}
    for family in _FAMILIES.keys() & given.keys():
        kind, names = _FAMILIES[family]
        value = given[family]
        if value is None and family == "unique":
            found: dict[str, Any] = {"key": None}
        elif isinstance(value, kind):
            found = {names.get(name, name): getattr(value, name) for name in kind.__struct_fields__}
        else:
            raise ConfigurationError(f"{family}= takes {kind.__name__}(…), not {type(value).__name__}.")
        if family == "retention":  # what is not given stays as it is
            found = {name: one for name, one in found.items() if one is not None}
        twice = sorted(found.keys() & single.keys())
        if twice:
            raise ConfigurationError(f"{family}= and {twice[0]}= say the same thing twice. Give one of them.")
        single |= found
    return single
