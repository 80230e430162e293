"""Connections to the SQLite file: opening, checking, migrating, and mapping SQLite's errors to ours.

Called by the writer, the readers and `holdfast migrate`. Every connection checks the schema it finds. Nothing here
knows about jobs, and no sqlite3 error leaves this package unmapped.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TypeVar

from ...errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, SchemaMismatch
from .fork import Post

T = TypeVar("T")

SQLITE_VERSION_MIN = (3, 37, 0)  # STRICT tables, RETURNING
SCHEMA_VERSION = 6
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)
SYNCHRONOUS = ("FULL", "EXTRA", "NORMAL")

# journal_size_limit: a WAL that grew because of a long-running reader shrinks again.
_PRAGMAS = ("temp_store = MEMORY", "cache_size = -20000", "journal_size_limit = 67108864")
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_OURS = {sqlite3.SQLITE_NOTADB}
_TEXTS = {
    sqlite3.SQLITE_FULL: "the disk is full. Free some space; nothing was changed.",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only. Give this user write permission.",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened. Check that its folder exists and that this user may use it.",
    sqlite3.SQLITE_PERM: "permission denied. Check the owner and mode of the file.",
    sqlite3.SQLITE_IOERR: "the disk reported an input/output error.",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore it from a backup.",
}


def mapped(error: sqlite3.Error, path: str) -> HoldfastError:
    """The one place that maps SQLite's errors to ours."""
    primary = _primary(error)
    name = os.path.basename(path)
    if primary in _BUSY:
        return BackendUnavailable(
            f"{name}: another process holds the write lock for too long. Nothing was changed; try again."
        )
    if primary in _NOT_OURS:
        return ConfigurationError(f"{name} is not a SQLite database. Name another file in the URL.")
    if primary in _TEXTS:
        kind = BackendUnavailable if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN) else BackendError
        return kind(f"{name}: {_TEXTS[primary]}")
    if primary == sqlite3.SQLITE_ERROR and _names_ours(error):
        return SchemaMismatch(SCHEMA_VERSION, SCHEMA_VERSION, _other_tables(error))
    return BackendError(f"{name}: SQLite failed ({type(error).__name__}: {error}).")


def _primary(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None if the sqlite3 module itself raised, e.g. for text that is not UTF-8."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _names_ours(error: sqlite3.Error) -> bool:
    """Whether a table, column or index of this schema is missing."""
    return str(error).startswith(("no such table: holdfast_", "no such index: holdfast_", "no such column"))


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk was full."""
    return _primary(error) == sqlite3.SQLITE_FULL


@contextmanager
def errors_mapped(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise mapped(error, path) from error


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


def connect(
    path: str, *, synchronous: str = "FULL", check_schema: bool = True, patience: float = 0.0
) -> sqlite3.Connection:
    """A connection in autocommit mode, with our pragmas; checks the schema unless it is about to be created. It never
    creates a file: one that was deleted while in use must not come back empty.

    `patience`: seconds to wait while another connection has the file locked exclusively.
    """
    with errors_mapped(path):
        name = f"{Path(os.path.abspath(path)).as_uri()}?mode=rw"
        connection = sqlite3.connect(
            name, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=0.02
        )
        try:
            for pragma in (f"synchronous = {synchronous}", *_PRAGMAS):
                patiently(partial(connection.execute, f"PRAGMA {pragma}"), patience)
            if check_schema:
                found = patiently(partial(schema_version, connection), patience)
                if found != SCHEMA_VERSION:
                    raise SchemaMismatch(found or 0, SCHEMA_VERSION)
        except BaseException:
            connection.close()
            raise
    return connection


def schema_version(connection: sqlite3.Connection) -> int | None:
    """The schema version of this store; None if the file contains no store."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_schema'").fetchone():
        return None
    row = connection.execute("SELECT version FROM holdfast_schema").fetchone()
    if row is None or not isinstance(row[0], int) or row[0] < 1:
        advice = "The number in holdfast_schema is missing or no number. Restore the file from a backup."
        raise SchemaMismatch(0, SCHEMA_VERSION, advice)
    return int(row[0])


def begin_immediate(connection: sqlite3.Connection, seconds: float) -> None:
    """Take the write lock, retrying with jitter for `seconds`; then the busy error is raised."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if _primary(error) not in _BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.004))


def begin_at_once(connection: sqlite3.Connection) -> bool:
    """Take the write lock; False if another connection holds it for more than a moment, or if SQLite fails."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error:
        return False
    return True


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
        if _primary(error) != sqlite3.SQLITE_ERROR:
            raise
        raise SchemaMismatch(version - 1, SCHEMA_VERSION, _other_tables(error)) from error
    connection.execute("DELETE FROM holdfast_schema")
    connection.execute("INSERT INTO holdfast_schema (only, version) VALUES (1, ?)", (version,))


def _other_tables(error: sqlite3.Error) -> str:
    return f"But its tables are not those of that schema ({error}). Restore the file from a backup."


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


def patiently(call: Callable[[], T], seconds: float) -> T:
    """Call, retrying for `seconds` while another connection has the file locked exclusively, even against readers.

    That connection may be setting the file up, be the first after a crash, or the last to close: these process the
    whole WAL.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if _primary(error) not in _BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.01))


def migrations() -> list[tuple[int, str]]:
    """Every migration, oldest first: (version, text)."""
    folder = resources.files(__package__ + ".migrations")
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
