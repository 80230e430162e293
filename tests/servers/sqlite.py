"""SQLite stores for the tests: a file that was migrated once per process and is copied for each store.

For tests of what a store does. Who tests how one is made, opened or migrated lets the backend make it.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.backends.sqlite.backend import SqliteBackend

from .folders import make_folder


@functools.cache
def _image() -> bytes:
    """A store that was made, closed and never used. Nothing in it tells it from another."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sq-") as folder:
        path = Path(folder) / "image.db"
        SqliteBackend(str(path))._set_up()
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name], "the file alone must be the store"
        return path.read_bytes()


def store_at(path: Path) -> SqliteBackend:
    """A backend on the store in that file, which is made if it is not there. No power is cut, so it need not wait for
    the disk."""
    if not path.exists():
        path.write_bytes(_image())
    return SqliteBackend(str(path), synchronous="NORMAL")


@functools.cache
def _folder() -> Path:
    folder = make_folder("holdfast-sq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fresh_stores() -> Callable[[str], SqliteBackend]:
    """How to make backends on empty stores: the same name, the same store. Ends the use of all earlier ones.

    In one folder per process: a folder per case costs more than the store in it.
    """
    for left in _folder().iterdir():
        left.unlink()
    return lambda store: store_at(_folder() / f"{store}.db")
