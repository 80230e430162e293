"""The type of each field of a job's record, and the fields a job in each state must have: one table, two languages.

Used by tolerant.py, which decodes records that may be damaged, and by scripts.py, which inserts the same check where
scripts decode records: a record that fails it counts as absent, so its index entry is set aside and no script fails on
it. Pure.

The check in Lua is one expression that raises an error, or is false. It compares, because that costs a few nanoseconds
per field: comparing a text with a number is an error, and NaN is neither less nor more. It accepts what harms no
script: a time outside the calendar, a text that is not UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

_LATEST, _EARLIEST = 253_402_300_799, -62_135_596_800  # the calendar's range of times
_COUNTED_MAX = 2**53  # COUNTED_MAX of lua/prelude.lua
_STATES = frozenset("swrxocd")


class Kind(NamedTuple):
    """How a value is checked: in Lua, where V stands for it, and in Python."""

    lua: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and _EARLIEST <= value <= _LATEST


def _is_terms(value: Any) -> bool:
    if not isinstance(value, list):
        return isinstance(value, bool)
    return len(value) == len(_TERMS) and all(kind.holds(one) for kind, one in zip(_TERMS, value, strict=True))


def _or_none(kind: Kind) -> Kind:
    return Kind(f"(V == false or {kind.lua})", lambda value: value is False or kind.holds(value))


TEXT = Kind("V >= ''", lambda value: isinstance(value, str))
NUMBER = Kind(f"V < {_COUNTED_MAX}", lambda value: _is_number(value) and abs(value) < _COUNTED_MAX)
SECONDS = Kind("V > -1e300", _is_number)
TIME = Kind("V > -1e300", _is_time)
FLAG = Kind("(V == true or V == false)", lambda value: isinstance(value, bool))
_LANE = Kind("V >= 0 and V < 16 and V % 1 == 0", lambda value: _is_number(value) and value in range(16))
_VALUE = Kind("(V == false or V == true or V == 1)", lambda value: isinstance(value, bool) or value == 1)
_STATE = Kind("V", lambda value: isinstance(value, str) and value in _STATES)  # NEEDED has them all
_TERMS = (FLAG, FLAG, _or_none(SECONDS), _or_none(TIME), FLAG, FLAG)
_LIST = " and ".join(f"{kind.lua.replace('V', f'V[{place}]')}" for place, kind in enumerate(_TERMS, 1))
_SOME_TERMS = Kind(f"(V == false or (V == true or {_LIST}) and (row[KEY] or V ~= true and not V[6]))", _is_terms)

_FIELDS: dict[Kind, tuple[str, ...]] = {
    TEXT: ("id", "queue", "task"),
    NUMBER: ("seq", "priority", "attempts", "failures", "stalls", "max_stalls", "fence", "shared_stalls"),
    TIME: ("created_at", "due_at"),
    _or_none(TIME): ("expires_at", "started_at", "finished_at", "prune_at"),
    _or_none(TEXT): ("group", "key", "token", "worker", "reason"),
    _or_none(NUMBER): ("turn", "claim_call"),
    FLAG: ("begun", "held", "cancel_requested", "suspect"),
    _LANE: ("lane",),
    _VALUE: ("value",),
    _STATE: ("state",),
    _SOME_TERMS: ("terms",),
}
KIND_OF = {name: kind for kind, names in _FIELDS.items() for name in names}
# Optional fields that a job in this state must have.
NEEDED: dict[str, tuple[str, ...]] = {
    "r": ("turn",),
    "x": ("token", "worker", "claim_call"),
    "w": ("group",),
    "s": (),
    **dict.fromkeys("ocd", ("finished_at",)),
}


def _in_lua() -> str:
    checks = [kind.lua.replace("V", f"row[{name.upper()}]") for name, kind in KIND_OF.items() if kind is not _STATE]
    states = [
        " and ".join([f"row[STATE] == '{state}'", *(f"row[{name.upper()}]" for name in names)])
        for state, names in NEEDED.items()
    ]
    return " and ".join([*checks, f"({' or '.join(states)})"])


# Whether `row` is a record that every script can work with. False, or an error, if it is not.
ROW_IS_SOUND = _in_lua()


def bad_fields(values: dict[str, Any]) -> list[str]:
    """Return the names of a record's fields that have the wrong type or are missing."""
    bad = [name for name, value in values.items() if not KIND_OF[name].holds(value)]
    if "state" not in bad:
        bad += [name for name in NEEDED[values["state"]] if values[name] is False]
    if "terms" not in bad and values["key"] is False and _holds_key(values["terms"]):
        bad.append("key")
    return bad


def _holds_key(terms: Any) -> bool:
    return bool(terms[-1] if isinstance(terms, list) else terms)
