"""A primary and its asynchronous replica, for tests in which the replica takes over; and how a quiet time is cut short.

Clients reach whichever is named through one path, as behind a service's own name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.backends.redis.keys import KEY_NAMES, keys_of

from ...servers.valkey import Server

PATIENCE_SECONDS = 60.0


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited too long for {what}")
        threading.Event().wait(0.01)


class Pair:
    """Both servers, and the path that leads to one of them."""

    def __init__(self, *, follows: bool = True) -> None:
        self.primary = Server(tcp=True, repl_diskless_sync_delay="0").start()
        self.replica = Server(tcp=True, repl_diskless_sync_delay="0").start()
        self._home = Path(tempfile.mkdtemp(prefix="holdfast-pair-"))
        self.plain_url = f"unix://{self._home / 'current.sock'}"
        self.url = f"redis+{self.plain_url}?prefix=holdfast"
        self._point_to(self.primary)
        if follows:
            self.follow(self.replica, self.primary)

    def _point_to(self, server: Server) -> None:
        new = self._home / "new.sock"
        new.symlink_to(server.socket)
        new.replace(self._home / "current.sock")

    def follow(self, replica: Server, primary: Server) -> None:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(primary.port))
            wait_for(lambda: client.info("replication").get("master_link_status") == "up", "the replica's link")

    def caught_up(self) -> None:
        """Wait until the replica has all there is."""

        def same() -> bool:
            with self.primary.client() as one, self.replica.client() as other:
                offsets = [client.info("replication")["master_repl_offset"] for client in (one, other)]
            return bool(offsets[0] == offsets[1])

        wait_for(same, "the replica to catch up")

    def cut(self) -> None:
        """From now on the replica hears nothing, and the primary does not wait for it."""
        self.replica.send(signal.SIGSTOP)
        with self.primary.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """The primary dies, its replica becomes the primary and is found where that one was."""
        self.primary.end(signal.SIGKILL)
        self.replica.send(signal.SIGCONT)
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self._point_to(self.replica)

    def change_over(self) -> None:
        """Both live on; they change places, and so do their names here."""
        self.caught_up()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self._point_to(self.replica)
        self.follow(self.primary, self.replica)
        self.primary, self.replica = self.replica, self.primary

    def remove(self) -> None:
        self.primary.remove()
        self.replica.remove()
        for path in self._home.iterdir():
            path.unlink()
        with contextlib.suppress(OSError):
            os.rmdir(self._home)


def meta_of(prefix: str) -> str:
    return keys_of(prefix)[KEY_NAMES.index("meta")]


def set_longest_lease(server: Server, seconds: float, prefix: str = "holdfast") -> None:
    """As if no worker had ever had a longer lease, not even the usual one."""
    with server.client() as client:
        client.hset(meta_of(prefix), "lease_max", str(seconds))


def end_quiet(server: Server, prefix: str = "holdfast") -> None:
    """Wait until the store has noticed that it must be quiet, and let a long lease be over."""
    with server.client() as client:

        def is_quiet() -> bool:
            return float(client.hget(meta_of(prefix), "quiet_until") or 0) > time.time()

        wait_for(is_quiet, f"the store {prefix} to be quiet")
        client.hset(meta_of(prefix), "quiet_until", "0")
