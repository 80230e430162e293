"""Comparing dumps: what must not have changed, and what changed when something had to.

Called by World and the cases. Pure: takes pictures that were already made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...records import Dump

Row = Mapping[str, Any]
Tables = dict[str, list[dict[str, Any]]]

# A worker's own traces of having called: they may move even when the call was refused.
CALLED: Mapping[str, Collection[str]] = {"workers": ("deadline", "renewed_at", "last_call")}
# Chance and counters: differ between two stores that went through the same history.
CHANCE: Mapping[str, Collection[str]] = {"jobs": ("token", "fence", "errors", "turn")}
# Derived when read, so it follows the clock and not a write.
_DERIVED: Mapping[str, Collection[str]] = {"workers": ("expired",)}


def tables_of(dump: Dump, *, besides: Mapping[str, Collection[str]] | None = None) -> Tables:
    """The dump's rows as plain dicts, without the columns named in `besides`."""
    found: Tables = {}
    for table, rows in dump.tables.items():
        hidden = {*_DERIVED.get(table, ()), *(besides or {}).get(table, ())}
        found[table] = [{column: value for column, value in row.items() if column not in hidden} for row in rows]
    return found


def differences(before: Tables, after: Tables) -> list[str]:
    """Every row that is in one picture only, as readable lines; empty when the pictures are the same."""
    lines: list[str] = []
    for table in sorted({*before, *after}):
        old, new = before.get(table, []), after.get(table, [])
        if old == new:
            continue
        gone = [row for row in old if row not in new]
        come = [row for row in new if row not in old]
        lines.extend(_paired(table, gone, come))
        if not gone and not come:
            lines.append(f"{table}: same rows in another order or number ({len(old)} → {len(new)})")
    return lines


def _paired(table: str, gone: list[dict[str, Any]], come: list[dict[str, Any]]) -> list[str]:
    """Lines for rows that went and came; the two versions of one row are shown as its changed columns."""
    lines: list[str] = []
    left = list(come)
    for row in gone:
        twin = next((other for other in left if _identity(other) == _identity(row)), None)
        if twin is None:
            lines.append(f"{table}: - {row}")
            continue
        left.remove(twin)
        moved = {c: (row.get(c), twin.get(c)) for c in sorted({*row, *twin}) if row.get(c) != twin.get(c)}
        lines.append(f"{table} {_identity(row)}: " + ", ".join(f"{c} {a!r} → {b!r}" for c, (a, b) in moved.items()))
    lines.extend(f"{table}: + {row}" for row in left)
    return lines


def _identity(row: Row) -> tuple[Any, ...]:
    if "id" in row:
        return (row["id"],)
    return tuple(row.get(column) for column in ("queue", "name", "group", "task", "job_id"))


def same_tables(before: Tables, after: Tables, what: str) -> None:
    """Assert that two pictures are the same; the message shows every changed column."""
    lines = differences(before, after)
    assert not lines, f"{what}: the store must be as before, but\n  " + "\n  ".join(lines[:20])


def changed_columns(before: Row, after: Row) -> set[str]:
    """The columns in which two versions of one row differ."""
    return {column for column in {*before, *after} if before.get(column) != after.get(column)}


def row_of(tables: Tables, table: str, identity: str) -> dict[str, Any] | None:
    """The row of `table` with that id, or None."""
    return next((row for row in tables.get(table, []) if row.get("id") == identity), None)


def ranked(rows: Collection[Row], column: str) -> list[Any]:
    """The ids of `rows` that have a value in `column`, in its order: equal in two stores whose counters differ."""
    return [row["id"] for row in sorted((row for row in rows if row.get(column) is not None), key=lambda r: r[column])]


def mentions(tables: Tables, job_id: str) -> list[str]:
    """The tables in which any row still carries the id."""
    return [name for name, rows in tables.items() if any(job_id in row.values() for row in rows)]


def same(actual: object, expected: object, what: str) -> None:
    """Assert equality with a message that shows both sides."""
    assert actual == expected, f"{what}: expected {expected!r}, got {actual!r}"
