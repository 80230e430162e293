"""Blocking calls to PostgreSQL on the calling thread, without an event loop in between.

Used by backend.py to enqueue one job from sync code, where two thread switches would cost more than the call. psycopg
connects and speaks the protocol; timeouts and error handling after that are implemented here, as in connection.py.
Threads share the idle connections; a connection in use belongs to one thread. Never used behind a pooler, where no
session state may persist. Never resends a request unless the server has rolled it back.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from ...errors import BackendUnavailable, OutcomeUnknown
from ...records import Enqueued, NewJob
from ..reconnect import is_ready
from .codec import in_bytes
from .connection import (
    AGAIN,
    HELD,
    LENT,
    STALE,
    TRIES_MAX,
    Connections,
    SessionStale,
    is_sound,
    keep_inherited,
    not_understood,
    unreached,
)
from .prepared_calls import FINE, decisive
from .wakeups import Wakeups

_NAME = b"holdfast_direct"  # the only prepared statement on each of these connections


class BlockingCalls:
    """A small pool of blocking connections for one statement that returns one value."""

    def __init__(self, connections: Connections, statement: str) -> None:
        self._connections, self._statement = connections, statement.encode()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: list[psycopg.Connection[Any]] = []  # all of one generation of connections
        self._generation = self._connections.generation

    def enqueue(self, job: NewJob, wakeups: Wakeups | None) -> list[Enqueued] | None:
        """Enqueue one job that `is_single`; None means use the general path.

        `wakeups` exists after the first call on the general path; they are sent on its loop.
        """
        if wakeups is None or wakeups.loop.is_closed() or wakeups.process != os.getpid() or self._connections.pooled:
            return None
        try:
            created = self.call("enqueue", *in_bytes(job)) == b"t"
        except SessionStale:  # a pooler that was not detected before
            return None
        wakeups.tell_from_elsewhere([job.queue])
        return [Enqueued(job.id, created)]

    def call(self, verb: str, values: Sequence[bytes | None], formats: Sequence[int]) -> bytes:
        """Execute the statement and wait; deadlocks and serialization failures are retried, with jitter."""
        patience_ends = time.monotonic() + self._connections.call_timeout
        for attempt in itertools.count(1):
            try:
                return self._once(verb, values, formats)
            except SessionStale as stale:
                if self._connections.pooled:
                    raise
                if attempt >= TRIES_MAX:
                    raise self._connections.mapped(stale.args[0], verb, writes=True, broken=False) from stale.args[0]
                continue
            except psycopg.Error as error:
                in_the_way = error.sqlstate == HELD and time.monotonic() < patience_ends
                if not in_the_way and (error.sqlstate not in AGAIN or attempt >= TRIES_MAX):
                    raise self._connections.mapped(error, verb, writes=True, broken=False) from error
            time.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, TRIES_MAX)))
        raise AssertionError  # the loop either returns or raises

    def close(self) -> None:
        """Close idle connections; one in use is closed when its call ends."""
        idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                connection.pgconn.finish()

    def _once(self, verb: str, values: Sequence[bytes | None], formats: Sequence[int]) -> bytes:
        connection, idle, is_new = self._take()
        generation = self._generation
        line = connection.pgconn
        try:
            line.send_query_prepared(_NAME, values, formats)
            result = _answer(line, 2 * self._connections.call_timeout)
        except (psycopg.Error, OSError, EOFError, TimeoutError) as error:
            line.finish()
            self._connections.give_up(generation)
            raise OutcomeUnknown(verb) from error
        except BaseException:
            line.finish()  # interrupted mid-call: the next call would read this one's result
            raise
        refused = None if result.status in FINE else error_from_result(result)
        broken = line.status != pq.ConnStatus.OK  # check while we own it: once put back, another thread may take it
        stale = refused is not None and refused.sqlstate in STALE
        if broken or stale:
            self._connections.give_up(generation, refused)
        if broken or stale or idle is not self._idle or len(idle) >= self._connections.most:
            line.finish()  # unusable, or the pool was closed meanwhile, or it is full
        else:
            idle.append(connection)
        if refused is None:
            return result.get_value(0, 0) or b""
        if broken:
            raise self._connections.mapped(refused, verb, writes=True, broken=True) from refused
        if stale and (self._connections.pooled or not is_new):
            raise SessionStale(refused) from refused
        raise refused

    # ------------------------------------------------------------------ connections

    def _take(self) -> tuple[psycopg.Connection[Any], list[psycopg.Connection[Any]], bool]:
        """A connection, the idle list to return it to, and whether it is new."""
        if self._process != os.getpid():
            keep_inherited(self._idle)  # the parent's: a message on these sockets would end its sessions
            self._begin()
        if self._generation != self._connections.generation:
            self._generation = self._connections.generation
            self.close()
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was first
                break
            if is_sound(connection):
                return connection, idle, False
            connection.pgconn.finish()
        return self._connect(), idle, True

    def _connect(self) -> psycopg.Connection[Any]:
        conninfo, settings = self._connections.settings()
        pace = self._connections.pace
        pace.turn_here()
        try:
            connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, **settings)
        except psycopg.OperationalError as error:
            failure = unreached(conninfo, error)
            pace.failed(failure)
            raise failure from None
        except psycopg.ProgrammingError:
            raise not_understood() from None
        pace.succeeded()
        line = connection.pgconn
        try:
            if self._connections.said_again is not None:
                connection.execute(self._connections.said_again)
            line.send_prepare(_NAME, self._statement)
            result = _answer(line, 2 * self._connections.call_timeout)
        except (psycopg.Error, OSError, EOFError, TimeoutError) as error:
            line.finish()
            raise BackendUnavailable("PostgreSQL did not accept the connection in time. Try again.") from error
        except BaseException:
            line.finish()
            raise
        if result.status not in FINE:
            line.finish()
            refused = error_from_result(result)
            if refused.sqlstate in LENT:
                self._connections.give_up(self._generation, refused)
                if self._connections.pooled:
                    raise SessionStale(refused)
            raise self._connections.mapped(refused, "enqueue", writes=False, broken=False)
        return connection


def _answer(line: Any, seconds: float) -> Any:
    """The result of the request, an error if any of its results is one; raises TimeoutError if it is late."""
    ends = time.monotonic() + seconds
    while line.flush():
        _wait(line, ends, writing=True)
    found = None
    while True:
        while line.is_busy():
            _wait(line, ends, writing=False)
            line.consume_input()
        result = line.get_result()
        if result is None:
            if found is None:
                raise EOFError
            return found
        found = decisive(found, result)


def _wait(line: Any, ends: float, *, writing: bool) -> None:
    left = ends - time.monotonic()
    if left <= 0 or not is_ready(line.socket, left, writing=writing):
        raise TimeoutError
