"""The schema: its name, the statements for that name, its creation and migration to this version.

Called by backend.py. The .sql files name the schema `holdfast`; this module replaces it by the one from the URL,
validated and quoted. Migrations change tables; functions are dropped and re-created at every change of version, so a
version in which only functions changed needs no migration, just the next SCHEMA_VERSION.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg import AsyncCursor
from psycopg.errors import (
    DuplicateColumn,
    DuplicateFunction,
    DuplicateObject,
    DuplicateTable,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
)

from ...errors import ConfigurationError, SchemaMismatch
from ..fragments import load_statements
from .connection import SCHEMA_VERSION, SEARCH_PATH, error_text

SERVER_VERSION_MIN = 140000
FILES = [
    "clock",
    "enqueue",
    "unique_keys",
    "caller_transaction",
    "exchange",
    "claim",
    "follow",
    "shares",
    "chains",
    "floors",
    "settle",
    "renew",
    "failover",
    "recover",
    "promote",
    "groups",
    "orders",
    "lanes",
    "rates",
    "limits",
    "rearrange",
    "operate",
    "letters",
    "dependencies",
    "propagate",
    "steps",
    "history",
    "edit",
    "prune",
    "cron",
    "move",
    "read",
    "wakeups",
    "flaws",
]
STATEMENTS = load_statements(__package__, FILES)

# Functions of operators and sweeps that must use indexes, as the hot ones do. A session caches its plans: one made
# while the store was empty would keep scanning it sequentially long after it has grown.
_BY_INDEX = (
    "annotate",
    "bury",
    "cancel",
    "delete",
    "discard",
    "edit",
    "free_key",
    "prune",
    "retire",
    "retry",
    "revive",
    "run_now",
    "signal",
    "slow_down",
    "tick",
)
_FUNCTION = ".function_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_PLACE = re.compile(r"\bholdfast\.")


def check_schema_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r} is not a name for a schema: letters, digits and _, at most 48, no digit first."
        )
    if name.lower().startswith("pg_") or name in ("public", "information_schema"):
        raise ConfigurationError(
            f"schema={name!r} belongs to PostgreSQL or to others. Give Holdfast a schema of its own."
        )
    return name


@functools.lru_cache(maxsize=16)
def for_schema(name: str) -> Mapping[str, str]:
    """All statements, with the schema's name filled in. Backends on one schema share them."""
    return _InSchema(check_schema_name(name))


class _InSchema(dict[str, str]):
    """The statements with a schema's name, each built when it is first used."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._quoted = f'"{name}".'

    def __missing__(self, part: str) -> str:
        made = self[part] = _PLACE.sub(self._quoted, STATEMENTS[part])
        return made


async def schema_version(cursor: AsyncCursor[Any], schema: str) -> int | None:
    """The version of the store in this schema; None if there is none."""
    # Query the catalog instead of the table: a session may have cached that the name does not exist.
    await cursor.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = 'schema_version'",
        (schema,),
    )
    if await cursor.fetchone() is None:
        return None
    try:
        await cursor.execute(f'SELECT version FROM "{schema}".schema_version')  # noqa: S608 - the name was checked
    except UndefinedColumn:
        raise _unreadable() from None
    found = await cursor.fetchall()
    try:
        [(version,)] = found
        number = int(version)
    except (TypeError, ValueError):
        raise _unreadable() from None
    if number < 1:
        raise SchemaMismatch(number, SCHEMA_VERSION, _NOT_OURS)
    return number


_NOT_OURS = "No version has that number: its table schema_version was changed. Restore it from a backup."


def _unreadable() -> SchemaMismatch:
    return SchemaMismatch(0, SCHEMA_VERSION, _NOT_OURS)


async def store_id(cursor: AsyncCursor[Any], schema: str) -> str:
    """The id that distinguishes this store from one of the same name in another database."""
    try:
        await cursor.execute(f'SELECT store::text FROM "{schema}".schema_version')  # noqa: S608 - the name was checked
    except UndefinedColumn:
        raise _unreadable() from None
    row = await cursor.fetchone()
    if row is None:
        raise _unreadable()
    return str(row[0])


_THERE_ALREADY = (DuplicateTable, DuplicateColumn, DuplicateObject, DuplicateFunction)
_NOT_THERE = (UndefinedTable, UndefinedColumn, UndefinedObject, UndefinedFunction)
_NOT_SO = "Its tables are those of another version ({}), and nothing was changed. Restore the store from a backup."


async def set_up(cursor: AsyncCursor[Any], schema: str) -> tuple[int, int]:
    """Create the store or migrate it to this version in one transaction; return (version before, version after).

    If killed half-way, nothing remains. An advisory lock makes a concurrent caller wait; it then finds the work done.
    """
    async with cursor.connection.transaction():
        await cursor.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast set-up'), hashtext(%s))", (schema,))
        found = await schema_version(cursor, schema)
        if found is not None and found > SCHEMA_VERSION:
            raise SchemaMismatch(found, SCHEMA_VERSION)
        if found == SCHEMA_VERSION:
            if not await _is_whole(cursor, schema):
                await _make_functions(cursor, schema)
            return found, found
        if found is None:
            await _check_server(cursor)
            await _check_free(cursor, schema)
        else:
            await _drop_functions(cursor, schema)
        for version, text in _migrations():
            if version > (found or 0):
                try:
                    await cursor.execute(_PLACE.sub(f'"{schema}".', text))
                except (*_THERE_ALREADY, *_NOT_THERE) as error:
                    raise SchemaMismatch(found or 0, SCHEMA_VERSION, _NOT_SO.format(error_text(error))) from error
        await _make_functions(cursor, schema)
        await cursor.execute(f'UPDATE "{schema}".schema_version SET version = %s', (SCHEMA_VERSION,))  # noqa: S608
        if not cursor.rowcount:
            text = f'INSERT INTO "{schema}".schema_version (version) VALUES (%s)'  # noqa: S608
            await cursor.execute(text, (SCHEMA_VERSION,))
        return found or 0, SCHEMA_VERSION


async def _is_whole(cursor: AsyncCursor[Any], schema: str) -> bool:
    """Whether a store of this version has all its functions and its incarnation row."""
    names = [part.partition(_FUNCTION)[2] for part in STATEMENTS.names if _FUNCTION in part]
    await cursor.execute(
        "SELECT count(DISTINCT p.proname) "  # noqa: S608 - the name was checked
        "FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        f'WHERE n.nspname = %s AND p.proname = ANY (%s) AND EXISTS (SELECT 1 FROM "{schema}".incarnation)',
        (schema, names),
    )
    return await cursor.fetchone() == (len(names),)


async def _drop_functions(cursor: AsyncCursor[Any], schema: str) -> None:
    """Remove the functions of an older version, so that none is left whose signature has changed.

    Except `is_sound`, which belongs to a table: a migration made it.
    """
    await cursor.execute(
        "SELECT format('DROP FUNCTION %%s', p.oid::regprocedure) FROM pg_proc p "
        "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname <> 'is_sound'",
        (schema,),
    )
    drops = [text for (text,) in await cursor.fetchall()]
    if drops:
        await cursor.execute("; ".join(drops))


async def _make_functions(cursor: AsyncCursor[Any], schema: str) -> None:
    await cursor.execute("SET LOCAL check_function_bodies = off")  # they call each other
    sql = for_schema(schema)
    functions = [sql[part] for part in STATEMENTS.names if _FUNCTION in part]
    await cursor.execute(";\n".join(functions))
    await cursor.execute(_settings(schema))
    await cursor.execute(
        f'INSERT INTO "{schema}".incarnation (timeline) SELECT "{schema}".timeline() '  # noqa: S608
        f'WHERE NOT EXISTS (SELECT 1 FROM "{schema}".incarnation)'
    )


def _settings(schema: str) -> str:
    """Settings attached to some functions."""
    # Only these run in callers' sessions; in ours the search path is set once per session, which is free.
    joining = ("enqueue_on", "settle_on")
    error_text = [f'ALTER FUNCTION "{schema}".{name} SET search_path = {SEARCH_PATH}' for name in joining]
    ways = " ".join(f"SET enable_{way} = off" for way in ("seqscan", "hashjoin", "mergejoin", "bitmapscan"))
    error_text += [f'ALTER FUNCTION "{schema}".{name} {ways}' for name in _BY_INDEX]
    return "; ".join(error_text)


def _migrations() -> list[tuple[int, str]]:
    folder = Path(__file__).parent / "migrations"
    files = sorted((entry.name, entry) for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), entry.read_text(encoding="utf-8")) for name, entry in files]


async def _check_server(cursor: AsyncCursor[Any]) -> None:
    await cursor.execute("SELECT current_setting('server_version_num')::int, current_setting('server_encoding')")
    row = await cursor.fetchone()
    version, encoding = row if row is not None else (0, "")
    if version < SERVER_VERSION_MIN:
        raise ConfigurationError(f"this server is PostgreSQL {version // 10000}; Holdfast needs 14 or newer.")
    if encoding != "UTF8":
        raise ConfigurationError(f"this database is encoded in {encoding}; Holdfast needs one in UTF8.")


async def _check_free(cursor: AsyncCursor[Any], schema: str) -> None:
    await cursor.execute(
        "SELECT n.oid IS NOT NULL, count(c.oid) FROM (SELECT 1) x LEFT JOIN pg_namespace n ON n.nspname = %s "
        "LEFT JOIN pg_class c ON c.relnamespace = n.oid GROUP BY n.oid",
        (schema,),
    )
    row = await cursor.fetchone()
    exists, relations = row if row is not None else (False, 0)
    if relations:
        raise ConfigurationError(
            f"the schema {schema!r} exists and is not a Holdfast store. Name another one: postgresql://…?schema=NAME."
        )
    if not exists:
        await cursor.execute(f'CREATE SCHEMA "{schema}"')


# ----------------------------------------------------------------------------------------------------------------------
# Finds the write privileges the role lacks, for `holdfast doctor`. Called by durability.py; never writes.


_LOOK = """
SELECT current_user::text,
       ARRAY(SELECT c.relname || ': ' || p.needed FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) p(needed)
             WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND NOT has_table_privilege(c.oid, p.needed) ORDER BY 1),
       ARRAY(SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = %(schema)s
               AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'UPDATE') END ORDER BY 1)
"""
SHOWN_MAX = 3


async def missing_right(cursor: AsyncCursor[Any], schema: str) -> tuple[str, str] | None:
    """What is missing, and the GRANTs that fix it; None: the role may write."""
    await cursor.execute(_LOOK, {"schema": schema})
    row = await cursor.fetchone()
    role, tables, sequences = row if row is not None else ("", [], [])
    if not tables and not sequences:
        return None
    lacking = [*tables, *(f"{name}: USAGE, UPDATE" for name in sequences)]
    more = f" and {len(lacking) - SHOWN_MAX} more" if len(lacking) > SHOWN_MAX else ""
    text = f"the role {role!r} cannot write to this store: it lacks {'; '.join(lacking[:SHOWN_MAX])}{more}."
    grants = (
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"; '
        f'GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{role}".'
    )
    return text, f"Reading works. To enqueue or to run a worker, let the owner execute: {grants}"
