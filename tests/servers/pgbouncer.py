"""A pgbouncer in transaction mode before a server of the tests, where one is installed (Debian: pgbouncer)."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from .postgres import START_SECONDS_MAX, Server

PORT = 6432
_SETTINGS = """
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {home}
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_reset_query_always = 1
server_reset_query = DISCARD ALL
{more}
"""


class Pooler:
    """Three sessions of the server, lent for one transaction at a time and cleaned after each."""

    def __init__(self, server: Server, more: str = "") -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            pytest.skip("pgbouncer is not installed")
        self.home = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
        settings = self.home / "pgbouncer.ini"
        settings.write_text(_SETTINGS.format(server=server.home, home=self.home, port=PORT, more=more))
        as_nobody: dict[str, object] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.home, nobody.pw_uid, nobody.pw_gid)
            as_nobody = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, settings], stdout=log, stderr=log, cwd=self.home, **as_nobody  # type: ignore[call-overload]
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"pgbouncer did not start: {(self.home / 'log').read_text()[-500:]}")

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.home), safe='')}&port={PORT}"

    def url(self, schema: str) -> str:
        return f"{self.conninfo}&schema={schema}"

    def remove(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(START_SECONDS_MAX)
        shutil.rmtree(self.home, ignore_errors=True)
