"""Finds the write privileges the role lacks, for `holdfast doctor`. Called by durability.py; never writes."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncCursor

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
    return text, f"To look this suffices; to enqueue or work, the owner says: {grants}"
