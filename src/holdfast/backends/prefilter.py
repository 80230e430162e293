"""A query's conditions as SQL over the columns of `jobs`, for stores that have these columns.

Called by the scans of SQLite and PostgreSQL. Pure. It never rejects a job that matches; it may let through some that do
not, because queries.matches decides. `exact` says whether it lets through only matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..queries.match import NUMBERS, SPANS
from ..records import Condition, JobQuery, Wanted

COLUMNS = {
    "queue": "queue", "task": "task", "group": "grp", "key": "key", "worker": "worker", "reason": "reason",
}  # fmt: skip
# A duration as a column, whether it grows as time passes, and the states in which it applies.
_SPANS = {
    "age": ("created_at", True, ""),
    "running": ("started_at", True, "state = 'running' AND "),
    "wait": ("due_at", True, "state IN ('ready', 'waiting') AND "),
    "due": ("due_at", False, "state = 'scheduled' AND "),
    "finished": ("finished_at", True, ""),
}
# A matching job has one of these in its options.
_STORED = {"tag": (b'"tags":',), "header": (b'"headers":', b'"dead":[')}
_CARRIED = frozenset({"error", *_STORED})
_SLACK = 0.001  # seconds: sums of times are rounded
_PLAIN = re.compile(r"[A-Za-z0-9_@:. -]*")  # what no JSON encoder escapes
_ESCAPES = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})

Parameter = Callable[[Any], str]  # takes a value, returns its placeholder


class Dialect(NamedTuple):
    """Where the SQL dialects differ."""

    ends: str  # the last {n} characters of {column}
    contains: str  # whether {column} has the bytes {value}
    args: str  # the arguments
    text: str  # the arguments as text; only ASCII has to be right
    alike: str  # case-insensitive LIKE of {} and the pattern {}
    like_is_exact: bool  # LIKE is case-sensitive


class Prefilter:
    """The conditions of one query."""

    def __init__(self, query: JobQuery, now: float, parameter: Parameter, dialect: Dialect) -> None:
        self._parameter, self._now, self._like_is_exact = parameter, now, dialect.like_is_exact
        self._ends, self._contains, self._args, self._text, self._alike = dialect[:5]
        self.exact = True
        self.conditions: list[str] = []
        self._states_and_names(query)
        for condition in query.more:
            text = self._one(condition)
            if text is not None:
                self.conditions.append(text)

    @property
    def where(self) -> str:
        """All conditions in one expression."""
        return " AND ".join(["true", *self.conditions])

    def _states_and_names(self, query: JobQuery) -> None:
        if query.states:
            listed = ", ".join(self._parameter(state.value) for state in query.states)
            self.conditions.append(f"state IN ({listed})")
        for field in ("queue", "task", "group", "key", "worker"):
            if (wanted := getattr(query, field)) is not None:
                self.conditions.append(f"{COLUMNS[field]} = {self._parameter(wanted)}")
        if query.id_prefix is not None:
            self.conditions.append(self._begins(query.id_prefix))
        if query.id_ends:
            ends = [f"{self._begins(one)} OR {self._ends_with(one)}" for one in query.id_ends]
            self.conditions.append(f"({' OR '.join(ends)})")

    def _begins(self, text: str) -> str:
        return f"substr(id, 1, {len(text)}) = {self._parameter(text)}"

    def _ends_with(self, text: str) -> str:
        return f"{self._ends.format(column='id', n=len(text))} = {self._parameter(text)}"

    def _one(self, condition: Condition) -> str | None:
        """The condition; None if SQL cannot express it."""
        field = condition.field
        exact = field in NUMBERS or (
            field in COLUMNS and (self._like_is_exact or all(len(wanted.parts) == 1 for wanted in condition.tests))
        )
        self.exact = self.exact and exact
        known = exact or field in COLUMNS or field in SPANS or field in _CARRIED or _is_plain(condition)
        if not known or (condition.negated and not exact):  # negated, it must be exact, or matches are lost
            return None
        tests = [self._test(field, bool(condition.path), wanted) for wanted in condition.tests]
        found = f"({' OR '.join(tests or ['false'])})"
        return f"NOT coalesce({found}, false)" if condition.negated else found

    def _test(self, field: str, has_path: bool, wanted: Wanted) -> str:
        if field in NUMBERS:
            return f"{field} {wanted.op} {self._parameter(wanted.number)}"
        if field in COLUMNS:
            if len(wanted.parts) == 1:
                return f"{COLUMNS[field]} = {self._parameter(wanted.parts[0])}"
            pattern = "%".join(part.translate(_ESCAPES) for part in wanted.parts)
            return f"{COLUMNS[field]} LIKE {self._parameter(pattern)} ESCAPE '\\'"
        if field in SPANS:
            column, grows, states = _SPANS[field]
            seconds = wanted.number or 0.0
            bound = self._now - seconds if grows else self._now + seconds
            if wanted.op.startswith(">") == grows:
                return f"({states}{column} <= {self._parameter(bound + _SLACK)})"
            return f"({states}{column} >= {self._parameter(bound - _SLACK)})"
        if field == "args" and has_path:
            return " AND ".join(self._has(self._args, part.encode()) for part in wanted.parts)
        if field in ("args", "text"):
            pattern = f"%{'%'.join(part.translate(_ESCAPES) for part in wanted.parts)}%"
            texts = [self._text, *(("id", *COLUMNS.values()) if field == "text" else ())]
            found = [self._alike.format(text, self._parameter(pattern)) for text in texts]
            return f"({' OR '.join(found + (['errors IS NOT NULL'] if field == 'text' else []))})"
        if field == "error":
            return "errors IS NOT NULL"
        return f"({' OR '.join(self._has('options', part) for part in _STORED[field])})"

    def _has(self, column: str, value: bytes) -> str:
        return self._contains.format(column=column, value=self._parameter(value))


def _is_plain(condition: Condition) -> bool:
    """Whether every value appears literally in the JSON of the arguments, whichever client wrote it."""
    return condition.field in ("args", "text") and all(
        wanted.op == "="
        and all(_PLAIN.fullmatch(part) for part in wanted.parts)
        and (not condition.path or wanted.number is None or _is_usual(wanted))
        for wanted in condition.tests
    )


def _is_usual(wanted: Wanted) -> bool:
    """Whether a number is written the way an encoder writes it."""
    return abs(wanted.number or 0.0) < 1e9 and wanted.parts == (str(int(wanted.number or 0.0)),)
