"""Probes, systemd's notifications, and a claim loop that would wait for ever."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.worker.worker_bench import WorkerApp, soon

from holdfast.worker.processes.health import CONNECTIONS_MAX, HealthPort, Notifier


async def ask(port: int, request: bytes) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    if not answer:
        return 0, None
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else None


async def test_probes_tell_alive_from_ready() -> None:
    facts = {"ready": False, "runners": []}
    health = HealthPort(lambda: facts)
    port = await health.start("127.0.0.1", 0)
    assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, facts)
    assert await ask(port, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n") == (503, facts)
    facts["ready"] = True
    assert await ask(port, b"GET /readyz?verbose HTTP/1.1\r\n\r\n") == (200, facts)
    assert await ask(port, b"HEAD /readyz HTTP/1.1\r\n\r\n") == (200, None)
    health.close()


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\n\r\n", b"POST /healthz HTTP/1.1\r\n\r\n", b"x\r\n\r\n"])
async def test_anything_else_is_not_found(request_: bytes) -> None:
    health = HealthPort(lambda: {"ready": True})
    port = await health.start("127.0.0.1", 0)
    assert (await ask(port, request_))[0] == 404
    health.close()


async def test_a_request_that_never_ends_is_cut_off() -> None:
    health = HealthPort(lambda: {"ready": True})
    port = await health.start("127.0.0.1", 0)
    assert await ask(port, b"GET /" + b"x" * 100_000) == (0, None)
    assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200
    health.close()


async def test_clients_that_say_nothing_make_way_for_a_probe() -> None:
    health = HealthPort(lambda: {"ready": True})
    port = await health.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * CONNECTIONS_MAX)]
    for _ in range(10):
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200
    assert len(health._open) <= CONNECTIONS_MAX
    for _, writer in silent:
        writer.close()
    health.close()


async def test_systemd_is_notified_and_its_watchdog_fed(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(path)
    listener.settimeout(20)
    notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())})
    notifier.tell("READY=1", "STATUS=fine")
    assert listener.recv(100) == b"READY=1\nSTATUS=fine"
    feeding = asyncio.create_task(notifier.feed_forever())
    heard = [await asyncio.to_thread(listener.recv, 100) for _ in range(3)]
    assert heard == [b"WATCHDOG=1"] * 3
    feeding.cancel()
    listener.close()


async def test_without_systemd_nothing_is_sent() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"})
    notifier.tell("READY=1")
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).tell("READY=1")
    assert notifier.watchdog_seconds is None
    await notifier.feed_forever()  # ends at once: there is nobody to feed


async def test_a_hint_that_never_comes_does_not_leave_the_worker_idle(
    memory_app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose wait_for_work hangs: the watchdog wakes the claim loop."""
    ran = asyncio.Event()

    @memory_app.task(name="quick")
    async def quick() -> None:
        ran.set()

    store = await memory_app.store()

    async def hangs(queues: Any, timeout: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "wait_for_work", hangs)
    async with memory_app.worker(lease=0.5, poll_every=0.01):
        await memory_app.put(quick.bind())
        await soon(ran)
