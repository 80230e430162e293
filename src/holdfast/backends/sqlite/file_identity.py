"""Identifies a store's file, so that a process notices when it was deleted, moved or replaced while in use.

Called by the writer before every commit, by the reader before every read and whenever a connection is opened: one stat
each, about a microsecond. An open connection keeps writing to the file it opened, whatever happened to its name; what
it then acknowledges would be in no file that anybody opens again. It never repairs anything: a file that replaces one
in use may be paired with the other's write-ahead log, so only a restart accepts it.
"""

from __future__ import annotations

import os

from ...errors import StoreReplaced

Identity = tuple[int, int]  # device and inode


def identity_of(path: str) -> Identity | None:
    """The file with this name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def replaced(path: str, opened: Identity) -> StoreReplaced | None:
    """The error if the path no longer names the file that was opened."""
    found = identity_of(path)
    if found == opened:
        return None
    return StoreReplaced(os.path.basename(path), gone=found is None)


def check(path: str, opened: Identity | None) -> None:
    refusal = None if opened is None else replaced(path, opened)
    if refusal is not None:
        raise refusal
