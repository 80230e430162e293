"""Creating and migrating the store's tables, after checking that file, folder and SQLite library can hold them.

Called when a backend opens, by `holdfast migrate`, and by the memory store for the image it copies. Nothing here knows
about jobs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from functools import partial
from pathlib import Path

from ...errors import ConfigurationError, SchemaMismatch
from .connection import (
    SCHEMA_VERSION,
    begin_immediate,
    connect,
    errors_mapped,
    other_tables,
    patiently,
    primary_code,
    schema_version,
)
from .fork import Post

SQLITE_VERSION_MIN = (3, 37, 0)  # STRICT tables, RETURNING
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)


def check_version() -> None:
    """Refuse a SQLite library that is too old for the schema."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise ConfigurationError(
            f"this Python has SQLite {sqlite3.sqlite_version}; Holdfast needs {wanted} or newer. Use a newer Python."
        )


def check_path(path: str) -> None:
    """Refuse a path that cannot be a store, before writing a byte."""
    check_version()
    if path in ("", ":memory:"):
        raise ConfigurationError("sqlite:// needs a file, e.g. sqlite:///jobs.db. For a store in memory use memory://")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"the folder of {os.path.basename(path)} does not exist: {folder}. Create it first.")
    if os.path.isdir(path):
        raise ConfigurationError(f"{path} is a folder. Name a file inside it.")
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"{folder} is on a network file system ({kind}), where SQLite's locks cannot be trusted. Use a local disk."
        )


def file_system_of(folder: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The file system type of a folder (Linux); None if unknown."""
    if not sys.platform.startswith("linux"):
        return None
    real = os.path.realpath(folder)
    best, kind = "", None
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split(" ")
                if len(fields) < 3:
                    continue
                point = fields[1].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[2]
    except OSError:
        return None
    return kind


def set_up(path: str, *, synchronous: str, share: bool, seconds: float) -> tuple[int, int]:
    """Create or migrate the store; returns (version before, version after).

    Each migration and its version number are one transaction. So a migration that is killed half-way leaves nothing, a
    second run finds nothing to do, and of two concurrent runs the second waits and finds the work done.
    """
    check_path(path)
    post = Post(rank=0)
    _make_private(path)
    with post.at_work, errors_mapped(path):
        connection = post.connection = connect(path, synchronous=synchronous, check_schema=False, patience=seconds)
        try:
            before = patiently(partial(_admissible_version, connection, path, share), seconds)
            if before == SCHEMA_VERSION:
                return before, before
            _use_wal(connection, path, seconds)
            for version, text in migrations():
                begin_immediate(connection, seconds)
                try:
                    if (_admissible_version(connection, path, share) or 0) < version:
                        _migrate_to(connection, version, text)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            return before or 0, SCHEMA_VERSION
        finally:
            post.close()


def _make_private(path: str) -> None:
    """Create the file readable by its owner only: it contains arguments. The WAL and its index inherit its mode."""
    with contextlib.suppress(OSError):  # it exists; or it cannot be created, and opening it will report that
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _migrate_to(connection: sqlite3.Connection, version: int, text: str) -> None:
    try:
        for statement in statements_of(text):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        raise SchemaMismatch(version - 1, SCHEMA_VERSION, other_tables(error)) from error
    connection.execute("DELETE FROM holdfast_schema")
    connection.execute("INSERT INTO holdfast_schema (only, version) VALUES (1, ?)", (version,))


def _admissible_version(connection: sqlite3.Connection, path: str, share: bool) -> int | None:
    encoding = connection.execute("PRAGMA encoding").fetchone()[0]
    if encoding != "UTF-8":
        raise ConfigurationError(f"{os.path.basename(path)} keeps its text as {encoding}; only UTF-8 is supported.")
    # Tables first: a rival that sets the file up between the two reads then shows its version, not just its tables.
    others = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 4")]
    version = schema_version(connection)
    if version is not None and version > SCHEMA_VERSION:
        raise SchemaMismatch(version, SCHEMA_VERSION)
    if version is None and not share and others:
        raise ConfigurationError(
            f"{os.path.basename(path)} already holds other tables ({', '.join(others)}). If the jobs should live "
            "beside them, so that you can enqueue inside your own transactions, add ?share=true to the URL; "
            "otherwise name another file."
        )
    return version


def _use_wal(connection: sqlite3.Connection, path: str, seconds: float) -> None:
    mode = patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], seconds)
    if mode != "wal":
        raise ConfigurationError(f"{os.path.basename(path)} cannot use write-ahead logging here (mode {mode!r}).")


def migrations() -> list[tuple[int, str]]:
    """Every migration, oldest first: (version, text)."""
    folder = Path(__file__).parent / "migrations"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(int(entry.name[:4]), entry.read_text(encoding="utf-8")) for entry in files]


def migrated_in_memory() -> sqlite3.Connection:
    """A database without a file that has this version's schema: to copy, or to compare a file with."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for version, text in migrations():
        _migrate_to(connection, version, text)
    return connection


def statements_of(text: str) -> list[str]:
    """A migration's statements one by one: executescript would commit the open transaction."""
    table = "CREATE TABLE IF NOT EXISTS holdfast_schema (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER)"
    statements, pending = [table], ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    if pending.strip():
        raise RuntimeError("a migration ends in the middle of a statement")
    return statements
