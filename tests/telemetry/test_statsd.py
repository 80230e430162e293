"""The StatsD example, with a UDP socket that listens."""

from __future__ import annotations

import importlib.util
import re
import socket
from collections import Counter
from pathlib import Path
from types import ModuleType

from holdfast import Holdfast, RetryPolicy, Snooze

EXAMPLE = Path(__file__).parents[2] / "examples" / "statsd" / "statsd.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("statsd_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attempts_are_counted_and_timed_over_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener, Holdfast("memory://") as app:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        sock = load().report(app, port=listener.getsockname()[1], prefix="shop")

        @app.task(name="mail.send")
        async def send() -> None: ...

        @app.task(name="fails", retry=RetryPolicy.fixed(0, limit=1))
        def fails() -> None:
            raise ValueError

        @app.task(name="naps")
        def naps() -> None:
            raise Snooze(3600)

        for task in (send, fails, naps):
            task.enqueue()
        app.work(drain=True)
        sock.close()
        heard = [line for _ in range(7) for line in listener.recv(1000).decode().splitlines()]
    counts = Counter(line for line in heard if line.endswith("|c"))
    assert counts == {
        "shop.mail_send.enqueued:1|c": 1,
        "shop.fails.enqueued:1|c": 1,
        "shop.naps.enqueued:1|c": 1,
        "shop.mail_send.succeeded:1|c": 1,
        "shop.fails.failed:1|c": 2,
        "shop.naps.given_up:1|c": 1,
    }
    times = [line for line in heard if not line.endswith("|c")]
    assert len(times) == 4
    assert all(re.fullmatch(r"shop\.\w+\.run:\d+\.\d\|ms", line) for line in times)


def test_a_collector_that_is_away_fails_no_job() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, Holdfast("memory://") as app:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        sock = load().report(app, port=port)

        @app.task(name="send")
        def send() -> None: ...

        for _ in range(3):
            send.enqueue()
        assert app.work(drain=True).succeeded == 3
        sock.close()
