"""StatsD from a worker, in sixty lines: counts and times of every attempt, over UDP, without a client library.

Call `report(app)` where the app is made. Datagrams that nobody hears are lost, and a handler never waits for one.
"""

import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import Context, Holdfast
from holdfast.events import Enqueued, Stalled


def report(app: Holdfast, host: str = "127.0.0.1", port: int = 8125, prefix: str = "holdfast") -> socket.socket:
    """Send PREFIX.TASK.succeeded (or failed, given_up, stalled, enqueued) as counters, PREFIX.TASK.run as a timer.

    Returns the socket, for programs that close what they opened.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)

    def send(task: str, *words: str) -> None:
        name = f"{prefix}.{re.sub(r'[^A-Za-z0-9_]', '_', task)}"
        try:
            sock.sendto("\n".join(f"{name}.{word}" for word in words).encode(), (host, port))
        except OSError:
            pass

    @contextmanager
    def attempt(ctx: Context) -> Iterator[None]:
        began, outcome = time.perf_counter(), "given_up"  # Retry, Snooze, Bury and a cancelled attempt
        try:
            yield
            outcome = "succeeded"
        except Exception:
            outcome = "failed"
            raise
        finally:
            send(ctx.task, f"{outcome}:1|c", f"run:{(time.perf_counter() - began) * 1000:.1f}|ms")

    def call(ctx: Context, call_next: Callable[[], Any]) -> Any:
        with attempt(ctx):
            return call_next()

    async def acall(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        with attempt(ctx):
            return await call_next()

    app.around(call, acall)

    @app.on("enqueued")
    def enqueued(event: Enqueued) -> None:
        send(event.task, "enqueued:1|c")

    @app.on("stalled")
    def stalled(event: Stalled) -> None:
        send(event.task, "stalled:1|c")

    return sock
