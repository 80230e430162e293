"""The layout of every packed array that is stored or passed to a script, and the type of each field of a job's record.

The only place where a position is decided. codec.py and limits.py build and read the arrays in this order;
assembler.py replaces `row[STATE]` and `rate[RATE_COUNT]` in the Lua files by these positions, and inserts the check of
the record's types where scripts decode records: one that fails counts as absent, so its index entry is set aside and no
script fails on it. codec.py uses the same types to decode records that may be damaged. Pure.

The check in Lua is one expression that raises an error, or is false. It compares, because that costs a few nanoseconds
per field: comparing a text with a number is an error, and NaN is neither less nor more. It accepts what harms no
script: a time outside the calendar, a text that is not UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...records import ORDER_MAX

_LATEST, _EARLIEST = 253_402_300_799, -62_135_596_800  # the calendar's range of times
_COUNTED_MAX = 2**53  # COUNTED_MAX of lua/prelude.lua
_STATES = frozenset("swrxocd")


class Kind(NamedTuple):
    """How a value is checked, in Lua, where V stands for it, and in Python; and the default for a missing one."""

    lua: str
    holds: Callable[[Any], bool]
    default: Any = False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and _EARLIEST <= value <= _LATEST


def _is_order(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= ORDER_MAX


def _is_terms(value: Any) -> bool:
    if not isinstance(value, list):
        return isinstance(value, bool)
    few = len(TERMS) - len(value)
    return few in (0, 1) and all(kind.holds(one) for kind, one in zip(TERMS.values(), value, strict=False))


def _or_none(kind: Kind) -> Kind:
    return Kind(f"(V == false or {kind.lua})", lambda value: value is False or kind.holds(value))


TEXT = Kind("V >= ''", lambda value: isinstance(value, str), "")
NUMBER = Kind(f"V < {_COUNTED_MAX}", lambda value: _is_number(value) and abs(value) < _COUNTED_MAX, 0)
SECONDS = Kind("V > -1e300", _is_number)
TIME = Kind("V > -1e300", _is_time, 0.0)
FLAG = Kind("(V == true or V == false)", lambda value: isinstance(value, bool))
_LANE = Kind("V >= 0 and V < 16 and V % 1 == 0", lambda value: _is_number(value) and value in range(16), 0)
_VALUE = Kind("(V == false or V == true or V == 1)", lambda value: isinstance(value, bool) or value == 1)
_STATE = Kind("V", lambda value: isinstance(value, str) and value in _STATES, "d")  # NEEDED has them all
_ORDER = Kind(f"(not V or V <= {ORDER_MAX} and V >= -{ORDER_MAX})", lambda value: value is False or _is_order(value))
_TIME_OR_NONE, _TEXT_OR_NONE, _NUMBER_OR_NONE = _or_none(TIME), _or_none(TEXT), _or_none(NUMBER)

# Every field costs every job, so options that few jobs set share one, `terms`: whether the job holds its key or, if it
# sets more, this.
TERMS = {
    "global": FLAG,  # the key is unique among all queues
    "until_started": FLAG,  # the key is free once the job starts
    "window": _or_none(SECONDS),  # seconds for which the key is held, even by a finished job
    "due_max": _or_none(TIME),
    "drops": FLAG,  # whether it is dropped when it expires, instead of buried
    "holds_key": FLAG,
    "order": _ORDER,  # its place in its group, as its caller gave it; jobs without one are stored without it
}
_HOLDS_KEY = list(TERMS).index("holds_key")
_LIST = " and ".join(kind.lua.replace("V", f"V[TERMS_{name.upper()}]") for name, kind in TERMS.items())
_HAS_KEY = "(row[KEY] or V ~= true and not V[TERMS_HOLDS_KEY])"
_TERMS = Kind(f"(V == false or (V == true or {_LIST}) and {_HAS_KEY})", _is_terms)

# A job's record; `false` stands for none. Lua files write row[STATE] for row[2].
RECORD = {
    "id": TEXT,
    "state": _STATE,
    "seq": NUMBER,
    "queue": TEXT,
    "task": TEXT,
    "priority": NUMBER,
    "group": _TEXT_OR_NONE,
    "key": _TEXT_OR_NONE,
    "turn": _NUMBER_OR_NONE,
    "lane": _LANE,  # + 4 if its priority is in its turn and its rank is 0, + 8 if it is listed in `staged`
    "attempts": NUMBER,
    "failures": NUMBER,
    "stalls": NUMBER,
    "max_stalls": NUMBER,
    "created_at": TIME,
    "due_at": TIME,
    "expires_at": _TIME_OR_NONE,
    "started_at": _TIME_OR_NONE,
    "finished_at": _TIME_OR_NONE,
    "prune_at": _TIME_OR_NONE,
    "token": _TEXT_OR_NONE,
    "fence": NUMBER,
    "worker": _TEXT_OR_NONE,
    "claim_call": _NUMBER_OR_NONE,
    "begun": FLAG,
    "held": FLAG,
    "cancel_requested": FLAG,
    "reason": _TEXT_OR_NONE,
    "value": _VALUE,  # false: none; true: null; 1: kept in `values`
    "shared_stalls": NUMBER,
    "suspect": FLAG,
    "terms": _TERMS,
}
FIELDS = tuple(RECORD)
# Optional fields that a job in this state must have.
NEEDED: dict[str, tuple[str, ...]] = {
    "r": ("turn",),
    "x": ("token", "worker", "claim_call"),
    "w": ("group",),
    "s": (),
    **dict.fromkeys("ocd", ("finished_at",)),
}


def _in_lua() -> str:
    checks = [kind.lua.replace("V", f"row[{name.upper()}]") for name, kind in RECORD.items() if kind is not _STATE]
    states = [
        " and ".join([f"row[STATE] == '{state}'", *(f"row[{name.upper()}]" for name in names)])
        for state, names in NEEDED.items()
    ]
    return " and ".join([*checks, f"({' or '.join(states)})"])


# Whether `row` is a record that every script can work with. False, or an error, if it is not.
ROW_IS_SOUND = _in_lua()


def bad_fields(values: dict[str, Any]) -> list[str]:
    """Return the names of a record's fields that have the wrong type or are missing."""
    bad = [name for name, value in values.items() if not RECORD[name].holds(value)]
    if "state" not in bad:
        bad += [name for name in NEEDED[values["state"]] if values[name] is False]
    if "terms" not in bad and values["key"] is False and _holds_key(values["terms"]):
        bad.append("key")
    return bad


def _holds_key(terms: Any) -> bool:
    return bool(terms[_HOLDS_KEY] if isinstance(terms, list) else terms)


def record_in_lua(values: Mapping[str, str]) -> str:
    """Return a record as Lua writes it, from expressions by field; other fields are 0 or false.

    Raises KeyError for a field that no record has, or that has no such default.
    """
    defaults = {name: str(kind.default).lower() for name, kind in RECORD.items() if kind.default in (0, False)}
    strays = values.keys() - RECORD.keys()
    if strays:
        raise KeyError(*strays)
    return f"{{ {', '.join(values[name] if name in values else defaults[name] for name in RECORD)} }}"


# ---------------------------------------------------------------------- what else scripts take, return and store

NEW_JOB = (
    *("id", "task", "queue", "priority", "group", "key", "on_conflict", "delay", "due_at", "expires", "max_stalls"),
    "terms",  # with wait_max in place of due_max, or nil
)
SETTLEMENT = ("id", "token", "ending", "failed", "delay", "value", "failure", "reason", "retain", "alone")
REQUEST = (
    *("worker", "call", "queues", "most", "most_by_queue", "most_by_task", "most_by_group", "bytes_max", "sweep_max"),
    *("chain_by_queue", "chained_max", "priorities"),
)
META = ("schema", "tick", "seq", "sealed", "quiet_until", "life", "used", "body_max")  # what every script reads of it

# The prefix in Lua → the fields: rate[RATE_COUNT] is rate[1].
LAYOUTS: dict[str, tuple[str, ...]] = {
    "TERMS": tuple(TERMS),
    "NEW": NEW_JOB,
    "LINK": ("parents", "policy", "delay", "due_at", "before"),  # what a new job waits for
    "DEPENDENT": ("pending", "failed", "policy", "delay", "due_at"),  # the same, as it is stored
    "EDGE": ("parent", "child", "status", "policy", "delay", "due_at"),  # as it is moved
    "TIES": ("parents", "joins", "watchers", "notes", "noted"),  # what a step stores for other shards
    "TIE": ("id", "shard"),
    "JOIN": ("waiting", "parent", "shard"),
    "NOTE": ("id", "text"),
    "REMOTE": ("shard", "state", "task", "tick"),  # a parent elsewhere
    "NEWS": ("id", "state", "task", "tick"),
    "POST": ("member", "tick"),
    "NEW_STEP": ("kind", "name", "number", "delay"),  # what a handler stores
    "STEP": ("number", "value", "until", "at", "fence"),  # the same, as it is stored
    "RELATIVE": ("id", "task", "state", "status", "value"),
    "SETTLED": SETTLEMENT,
    "RELEASE": ("id", "token", "delay"),
    "HELD": ("id", "token"),
    "REPORT": ("id", "token", "progress", "text", "lines"),
    "PROGRESS": ("fraction", "text"),
    "RANGE": ("lowest", "highest"),  # of priorities
    "CALL": ("number", "answers"),  # a worker's last numbered call
    "WORKER": ("lease_seconds", "started_at", "renewed_at", "deadline", "facts"),
    "SERVER": ("process", "node", "shard"),  # ids
    "RATE": ("count", "seconds", "burst"),
    "FLOW": ("spent_until", "shut_until", "wakes_at"),  # a rate's state (GCRA): TAT, end of a slow-down, wake-up
    # A queue's rule. The last fields are stored only if they are set, so older rules read the same.
    "RULE": (
        "group_limit",
        "group_order",
        "limit",
        "rate",
        "group_rate",
        "aging",
        "on_dead",
        "order_window",
        "dead_queue",
        "elsewhere",
    ),  # elsewhere: that queue is in other shards
    "TASK": ("limit", "rate", "apart", "retain_count", "retain_dead", "retain_dead_count"),  # a task's rule
    "OVERRIDE": ("limit", "rate", "apart", "weight"),
    "NAMED": ("name", "rule"),
    "SCOPED": ("kind", "queue", "name", "value"),  # of a queue (q), group (g) or task (t)
    "COMPARED": ("op", "number"),  # a test of a number in a scan
    "HEAD": ("read", "rest"),  # before the first fields of a record: whether they could be read, where the rest begins
    "ENTRY": ("name", "version", "declared"),
    "LETTER": ("queue", "task", "key", "letter"),
    "SET": ("value",),  # a value that may also be left as it is: nil then
    "ROLLED": ("queue", "task", "worker", "outcome", "count", "waits", "runs"),  # what is added to a roll-up
    "ROLLUP": ("count", "waits", "runs"),  # as it is stored
    "RECORDED": ("number", "at"),  # a worker's last recording
    "SEEN": ("name", "body"),  # an event
    "ASIDE": ("at", "why", "value"),  # in quarantine
    # Replies of the server.
    "SCAN": ("cursor", "entries"),
    "TIME": ("seconds", "micros"),
    "SCORED": ("member", "score"),
    "HINT": ("id", "fields"),  # a stream's entry
}
# Variables that have one layout in all scripts: request.most is request[4].
VARIABLES = {"request": REQUEST, "meta": META}


def _positions() -> dict[str, int]:
    found = {name.upper(): place for place, name in enumerate(FIELDS, 1)}
    for prefix, names in LAYOUTS.items():
        for place, name in enumerate(names, 1):
            if found.setdefault(f"{prefix}_{name.upper()}", place) != place:
                raise ValueError(f"{prefix}_{name.upper()} is the name of two positions")
    return found


POSITIONS = _positions()  # by the name that Lua files use
