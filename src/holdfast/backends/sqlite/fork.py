"""Forking while connections are open: they are idle during the fork, and the child closes its copies.

The writer, the reader and the wake-ups use their connection only inside `at_work`. SQLite records the locks of a
process in that process's memory. A child inherits the records but not the locks: as long as its copies of the parent's
connections are open, a connection it opens itself takes no lock of its own, and another process that closes the file
removes the write-ahead log under it. Closing idle copies is harmless to the parent.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref

REST_SECONDS_MAX = 5.0  # a fork waits this long for a write in progress; a copy that was not idle is left alone


class Post:
    """Holds one connection, used by one thread at a time and only while it holds `at_work`.

    `rank` is the order in which posts are locked before a fork: one that may wait for another goes first.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.at_work = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        with _registry:
            _posts.add(self)

    def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()
            self.connection = None


_registry = threading.Lock()
_posts: weakref.WeakSet[Post] = weakref.WeakSet()
_resting: list[Post] = []
_left_alone: list[object] = []  # in a forked child: copies that were in use, never touched, never freed


def _bring_to_rest() -> None:
    _registry.acquire()
    for post in sorted(_posts, key=lambda one: one.rank):
        if post.at_work.acquire(timeout=REST_SECONDS_MAX):
            _resting.append(post)


def _go_on() -> None:
    while _resting:
        _resting.pop().at_work.release()
    _registry.release()


def _close_copies() -> None:
    rested = set(_resting)
    for post in list(_posts):
        if post in rested:
            post.close()
        else:
            _left_alone.append((post, post.connection))
    _posts.clear()
    _go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_bring_to_rest, after_in_parent=_go_on, after_in_child=_close_copies)
