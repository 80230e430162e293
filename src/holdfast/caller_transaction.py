"""Enqueue in the caller's own transaction: check sync against async, open the store, hand the calls to the backend.

Called by the app. Runs on the caller's own thread or loop; never commits or rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .backends.caller_connections import is_begun, recognise
from .calls import fresh_record
from .errors import ConfigurationError
from .job import BoundCall
from .lifecycle import State
from .records import Enqueued, JobRecord
from .store_thread import StoreHandle

Stored = list[tuple[JobRecord, Enqueued]]


def join(gate: StoreHandle, connection: Any, calls: Sequence[BoundCall[Any]]) -> Stored:
    """Store the calls through a sync connection; returns each job as its producer knows it, and whether it is new."""
    caller = recognise(connection)
    if caller.is_async:
        raise ConfigurationError(
            f"enqueue() cannot use the {caller.name} given as connection=: it is for async code. "
            "Use `await ….aenqueue()` on the loop that owns the connection."
        )
    backend = gate.unopened
    if not gate.is_open and not (backend.scheme == "sqlite" and is_begun(connection)):
        gate.open()  # sets up the store: on SQLite, inside the caller's transaction, that would wait for itself
    return _stored(gate, calls, backend.enqueue_on(connection, [call.new for call in calls]))


async def ajoin(gate: StoreHandle, connection: Any, calls: Sequence[BoundCall[Any]]) -> Stored:
    """Like `join`, through an async connection."""
    caller = recognise(connection)
    if not caller.is_async:
        raise ConfigurationError(
            f"aenqueue() cannot use the {caller.name} given as connection=: it is for sync code. "
            "Use enqueue() on the thread that owns the connection."
        )
    backend = gate.unopened
    if not gate.is_open and not (backend.scheme == "sqlite" and is_begun(connection)):
        await gate.acall(lambda _: _opened())
    return _stored(gate, calls, await backend.aenqueue_on(connection, [call.new for call in calls]))


async def _opened() -> None:
    """No-op: going through the store handle has opened the store."""


def _stored(gate: StoreHandle, calls: Sequence[BoundCall[Any]], answers: Sequence[Enqueued]) -> Stored:
    now = gate.clock.wall()
    return [
        (fresh_record(call.new, answer.id, now, State.SCHEDULED), answer)
        for call, answer in zip(calls, answers, strict=True)
    ]
