"""Facts about a store: its schema, its free space, and the settings that decide whether acknowledged jobs survive.

Called by the doctor, beside an opened backend. Reads over a connection of its own, never writes, and judges nothing.
A setting that a managed service does not reveal is absent: that means unknown, not bad.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import HoldfastError
from . import Address

CALL_TIMEOUT_DEFAULT = 5.0
POSTGRES_SETTINGS = ("fsync", "full_page_writes", "server_version", "synchronous_commit")
REDIS_SETTINGS = (
    *("redis_version", "valkey_version", "maxmemory", "maxmemory_policy", "used_memory"),
    *("aof_enabled", "aof_last_write_status", "rdb_last_bgsave_status", "connected_slaves"),
)

_POSTGRES_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'
"""


class StoreFacts(Struct, frozen=True, kw_only=True):
    """What the store reported. Settings have the store's own names and spelling."""

    schema: int  # its version; an opened store has this one
    settings: Mapping[str, str] = {}
    nodes: Mapping[str, Mapping[str, str] | None] = {}  # host:port of each primary of a cluster; None: it did not reply
    quiet_seconds: float = 0.0  # above 0: it may have lost its latest writes and grants no leases for this long
    old_snapshot: tuple[str, str] | None = None  # what keeps dead rows from being removed, and what to do about it
    missing_right: tuple[str, str] | None = None  # what its role may not do, and how to grant it
    free_bytes: int | None = None  # on its disk, if we can see it
    size_bytes: int | None = None  # of the file, of the schema's tables, or of all that the Redis server holds


async def ask_store(address: Address) -> StoreFacts:
    """Query the store at that address, which a backend has just opened."""
    if address.scheme == "postgresql":
        return await _ask_postgres(address)
    if address.scheme == "redis":
        return await _ask_redis(address)
    if address.scheme == "redis+cluster":
        return await _ask_cluster(address)
    return await asyncio.to_thread(_ask_sqlite, address)


def _ask_sqlite(address: Address) -> StoreFacts:
    from .sqlite.connection import SCHEMA_VERSION, errors_mapped

    with errors_mapped(address.path):
        connection = sqlite3.connect(f"{Path(address.path).as_uri()}?mode=ro", uri=True)
        try:
            mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        finally:
            connection.close()
    return StoreFacts(
        schema=SCHEMA_VERSION,
        settings={
            "journal_mode": mode,
            "synchronous": address.options.get("synchronous", "FULL"),
            "sqlite_version": sqlite3.sqlite_version,
        },
        free_bytes=shutil.disk_usage(Path(address.path).parent).free,
        size_bytes=sum(path.stat().st_size for end in ("", "-wal") if (path := Path(f"{address.path}{end}")).exists()),
    )


async def _ask_postgres(address: Address) -> StoreFacts:
    from .postgres.connection import SCHEMA_VERSION, Connections
    from .postgres.schema import missing_right
    from .postgres.snapshots import OldSnapshot, oldest_snapshot

    options = address.options
    timeout = options.get("call_timeout", CALL_TIMEOUT_DEFAULT)
    schema = options.get("schema", "holdfast")  # already validated
    connections = Connections(address.path, call_timeout=timeout, most=1, pooled=options.get("pooled"), schema=schema)

    async def read(cursor: Any) -> tuple[dict[str, str], float, int, OldSnapshot | None, tuple[str, str] | None]:
        await cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(POSTGRES_SETTINGS),))
        settings = dict(await cursor.fetchall())
        await cursor.execute(
            "SELECT greatest(0, quiet_until - extract(epoch FROM clock_timestamp()))::float8 "  # noqa: S608
            f'FROM "{schema}".incarnation'
        )
        row = await cursor.fetchone()
        quiet = 0.0 if row is None else row[0]
        await cursor.execute(_POSTGRES_SIZE, (schema,))
        size = int((await cursor.fetchone())[0])
        return settings, quiet, size, await oldest_snapshot(cursor, schema), await missing_right(cursor, schema)

    try:
        settings, quiet, size, oldest, missing = await connections.call("doctor", read, writes=False)
    finally:
        connections.abandon()
    held = None if oldest is None else (oldest.text, oldest.advice)
    return StoreFacts(
        schema=SCHEMA_VERSION,
        settings=settings,
        quiet_seconds=quiet,
        old_snapshot=held,
        missing_right=missing,
        size_bytes=size,
    )


async def _ask_redis(address: Address) -> StoreFacts:
    from .redis.connection import Connections
    from .redis.keys import KEY_NAMES, PREFIX_DEFAULT, SCHEMA_VERSION

    options = address.options
    timeout = options.get("call_timeout", CALL_TIMEOUT_DEFAULT)
    connections = Connections(address.path, prefix=options.get("prefix", PREFIX_DEFAULT), call_timeout=timeout, most=1)
    try:
        settings = await _redis_settings(connections)
        until = await connections.command("doctor", "HGET", connections.keys[KEY_NAMES.index("meta")], "quiet_until")
        seconds, _ = await connections.command("doctor", "TIME")
        settings["wait"] = str(options.get("wait", 0))
    finally:
        connections.abandon()
    quiet = max(0.0, float(until) - int(seconds)) if until else 0.0
    size = int(settings.get("used_memory", 0))
    return StoreFacts(schema=SCHEMA_VERSION, settings=settings, quiet_seconds=quiet, size_bytes=size)


async def _redis_settings(connections: Any) -> dict[str, str]:
    from .redis.server import look_at_server

    info = await look_at_server(connections)
    settings = {name: info[name] for name in REDIS_SETTINGS if name in info}
    try:
        pair = await connections.command("doctor", "CONFIG", "GET", "appendfsync")
        settings["appendfsync"] = pair[1].decode()
    except (HoldfastError, IndexError):
        pass  # managed services do not reveal it
    return settings


async def _ask_cluster(address: Address) -> StoreFacts:
    from .redis.cluster import Node, Nodes
    from .redis.keys import PREFIX_DEFAULT, SCHEMA_VERSION

    options = address.options
    timeout = options.get("call_timeout", CALL_TIMEOUT_DEFAULT)
    nodes = Nodes(address.path, prefix=options.get("prefix", PREFIX_DEFAULT), call_timeout=timeout, most=1)

    async def ask(node: Node) -> Mapping[str, str] | None:
        try:
            return await _redis_settings(node.connections)
        except HoldfastError:
            return None

    try:
        found = await nodes.primaries()
        answers = await asyncio.gather(*map(ask, found))
    finally:
        nodes.abandon()
    names = ["{}:{}".format(*node.address) for node in found]
    size = sum(int(one.get("used_memory", 0)) for one in answers if one is not None)
    return StoreFacts(schema=SCHEMA_VERSION, nodes=dict(zip(names, answers, strict=True)), size_bytes=size)
