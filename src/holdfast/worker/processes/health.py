"""Health reporting: over HTTP for probes (`--health-port`) and scrapes (`--metrics-port`), and to systemd (sd_notify).

Used by the process worker, on the keeper's loop: if the loop hangs, probes fail and the watchdog is not fed. It only
reports and never calls the store, so a store that is down makes a worker unready, not dead.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import Struct

from ...errors import ConfigurationError

REQUEST_BYTES_MAX = 8192
REQUEST_SECONDS_MAX = 2.0
CONNECTIONS_MAX = 32  # above this, the oldest open connection is closed

Report = Mapping[str, Any]  # `ready` (bool) and any further details


class Page(Struct, frozen=True):
    """A reply: 200, or 503 if not `well`."""

    body: bytes
    kind: str = "application/json"
    well: bool = True


class ReportPort(ABC):
    """A tiny HTTP server for reports that are built from memory, without waiting."""

    what: ClassVar[str]

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen. Return the bound port, which differs from `port` only if that is 0."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            why = (error.strerror or str(error)).rpartition(": ")[2]
            text = f"{host}:{port} cannot be used for {self.what}: {why}. Give another port."
            raise ConfigurationError(text) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:  # probes send their request at once; drop one that has not
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
            reply = await self._reply(head)
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                writer.write(reply)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or sent no valid request in time
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        path = words[1].split(b"?")[0] if len(words) == 3 and words[0] in (b"GET", b"HEAD") else b""
        page = await self._page(path)
        if page is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        start = b"HTTP/1.1 200 OK" if page.well else b"HTTP/1.1 503 Service Unavailable"
        fields = f"Content-Type: {page.kind}\r\nContent-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
        return start + b"\r\n" + fields.encode() + (b"" if words[0] == b"HEAD" else page.body)

    @abstractmethod
    async def _page(self, path: bytes) -> Page | None:
        """The page at this path; None: not found."""


class HealthPort(ReportPort):
    """/healthz reports that the keeper is alive, /readyz whether it can take jobs."""

    what = "probes"

    def __init__(self, report: Callable[[], Report]) -> None:
        super().__init__()
        self._report = report

    async def _page(self, path: bytes) -> Page | None:
        if path not in (b"/healthz", b"/readyz"):
            return None
        report = self._report()
        return Page(json.dumps(report).encode(), well=path == b"/healthz" or bool(report["ready"]))


class MetricsPort(ReportPort):
    """/metrics has the worker's metrics as text, for Prometheus.

    The text is built in a thread: the 5,000 lines of a hundred tasks would hold up the keeper's loop for too long.
    """

    what = "metrics"

    def __init__(self, look: Callable[[], Callable[[], bytes]]) -> None:
        super().__init__()
        self._look = look  # called on the loop; returns a function that builds the text, called in a thread

    async def _page(self, path: bytes) -> Page | None:
        if path != b"/metrics":
            return None
        return Page(await asyncio.to_thread(self._look()), "text/plain; version=0.0.4; charset=utf-8")


class Notifier:
    """Notifies systemd if it asked for it (NOTIFY_SOCKET)."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        span = environment.get("WATCHDOG_USEC", "") if own else ""
        self.watchdog_seconds = int(span) / 1e6 if span.isdigit() and int(span) else None

    def tell(self, *words: str) -> None:
        """Send a notification; a no-op without a listener."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(words).encode(), address)
        except OSError:
            pass  # a supervisor that does not listen is no reason to stop working

    async def feed_forever(self) -> None:
        """Feed systemd's watchdog from the loop that it watches."""
        while self.watchdog_seconds is not None:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)
