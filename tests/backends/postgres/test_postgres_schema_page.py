"""The page about the schema names every table, column, index and sequence there is, and none that is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import psycopg

from holdfast.backends.postgres.backend import PostgresBackend

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "postgres-schema.md"
_NAMES = """
SELECT relname FROM pg_class WHERE relnamespace = %(schema)s::regnamespace AND relkind IN ('r', 'i', 'S')
UNION SELECT attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind = 'r' AND a.attnum > 0
"""
NOT_NAMES = {"scheduled", "waiting", "ready", "running", "succeeded", "cancelled", "dead", "holdfast", "CHECK", "C"}


def test_the_page_and_the_schema_agree(
    make: Callable[..., PostgresBackend], session: psycopg.Connection, schema: str
) -> None:
    async def set_up() -> None:
        backend = make()
        await backend.open()
        await backend.close()

    asyncio.run(set_up())
    there = {row[0] for row in session.execute(_NAMES, {"schema": schema}).fetchall()}
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"`([\w ]+)`", text))
    headings = {name for line in re.findall(r"^## (.+)$", text, flags=re.M) for name in line.split(", ")}
    assert sorted(there - named - headings) == []
    assert sorted((named | headings) - there - NOT_NAMES) == []
