"""A moving address in front of test servers: connections go to the server that it currently points to.

Connections made earlier stay with their server, as behind DNS, a virtual address or a proxy. Bytes are never altered,
but for the settings in a greeting, which it can be told to swallow as some poolers do.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Protocol
from urllib.parse import quote

_PROTOCOL = struct.pack("!I", 196608)


class Reachable(Protocol):
    """A server of the tests."""

    @property
    def socket(self) -> str: ...


class Relay:
    """Listens on a loopback port; `with` ends it and every connection it carries."""

    def __init__(self, server: Reachable, *, swallows: tuple[bytes, ...] = ()) -> None:
        self.server: Reachable = server
        self._swallows = swallows
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._start(self._serve)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def conninfo(self, database: str = "postgres") -> str:
        """The address before a PostgreSQL server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database)}?sslmode=disable&gssencmode=disable"

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _end(self._listening)
        self._threads[0].join()
        for end in self._ends:
            _end(end)
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            far = socket.socket(socket.AF_UNIX)
            self._ends += [near, far]
            try:
                far.connect(self.server.socket)
                far.sendall(self._greeting(near) if self._swallows else b"")
            except OSError:
                _end(near)
                continue
            self._start(_carry, near, far)
            self._start(_carry, far, near)

    def _greeting(self, near: socket.socket) -> bytes:
        [length] = struct.unpack("!I", near.recv(4, socket.MSG_WAITALL))
        words = near.recv(length - 4, socket.MSG_WAITALL)[4:].split(b"\0")
        pairs = zip(words[::2], words[1::2], strict=False)
        kept = [name + b"\0" + value + b"\0" for name, value in pairs if name and name not in self._swallows]
        content = _PROTOCOL + b"".join(kept) + b"\0"
        return struct.pack("!I", len(content) + 4) + content


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := one.recv(65536):
            other.sendall(content)
    for end in (one, other):
        _end(end)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
