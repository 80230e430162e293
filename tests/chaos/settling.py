"""One attempt that writes to a ledger and settles in the same transaction, and is killed between two statements."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg

from holdfast.backends import open_backend
from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer

STEPS = 4  # statements; it dies before the first, between two, or after the last


def pay(url: str, conninfo: str, job_id: str, token: str, dies_before: int) -> None:
    """Runs in a process of its own, and never returns."""
    backend = open_backend(url)
    connection: Any = (
        psycopg.connect(conninfo, autocommit=True)
        if url.startswith("postgresql")
        else sqlite3.connect(conninfo, isolation_level=None, timeout=30)
    )
    settlement = Settlement(id=job_id, token=token, ending=Ending.SUCCEEDED, value=b'"paid"')
    steps: list[Callable[[], Any]] = [
        partial(connection.execute, "BEGIN"),
        partial(connection.execute, f"INSERT INTO ledger (job) VALUES ('{job_id}')"),
        partial(_settle, backend, connection, settlement),
        partial(connection.execute, "COMMIT"),
    ]
    for step in steps[:dies_before]:
        step()
    os.kill(os.getpid(), signal.SIGKILL)


def _settle(backend: Backend, connection: Any, settlement: Settlement) -> None:
    if backend.settle_on(connection, settlement) is not Answer.OK:
        os._exit(3)
