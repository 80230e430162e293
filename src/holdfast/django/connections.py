"""Database connections around every attempt: what Django does around every request.

Registered by the app as middleware. A connection that the server has closed, or that is past CONN_MAX_AGE, is replaced;
one that is kept (CONN_MAX_AGE) is checked before its first use in each attempt, whatever CONN_HEALTH_CHECKS says: a
job must not fail because a database was restarted since the last one. Nothing is closed inside `atomic()`, so in tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from ..context import INLINE, Context
from ..hooks import AsyncCallNext, CallNext


def around(ctx: Context, call_next: CallNext) -> Any:
    """Around a sync handler, in its thread."""
    refresh_connections()
    try:
        return call_next()
    finally:
        _close_old()
        _watch_thread()


async def aaround(ctx: Context, call_next: AsyncCallNext) -> Any:
    """Around an async handler. Its database calls get a thread of their own (as a request's do), ended with it.

    Inline they are made in the calling thread instead, which has the test's open transaction.
    """
    async with ThreadSensitiveContext() as own:
        if INLINE.get():
            SyncToAsync.context_to_thread_executor[own] = _CallingThread()
            return await call_next()
        try:
            return await call_next()
        finally:
            if own in SyncToAsync.context_to_thread_executor:  # it used that thread
                await sync_to_async(connections.close_all)()


class _CallingThread(Executor):
    """Runs the sync code of an async handler at once in this thread, while its loop is not marked as running."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        loop = asyncio._get_running_loop()
        if isinstance(fn, partial) and fn.args[:1] == (loop,):  # asgiref's own: where async_to_sync() will look
            fn = partial(fn.func, _Occupied(), *fn.args[1:], **fn.keywords)
        asyncio._set_running_loop(None)
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # like a Future: raised where it is awaited
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(loop)
        return future


class _Occupied:
    """In place of a loop that waits for this very code: async_to_sync() takes a new loop instead of waiting for it."""

    create_task = None

    def call_soon_threadsafe(self, *_: object) -> None:
        raise RuntimeError("this loop is occupied")


class _AtThreadEnd:
    """Closes the kept connections of a handler's thread when the thread ends: only that thread can."""

    __slots__ = ("wrappers",)

    def __init__(self) -> None:
        self.wrappers: list[Any] = []

    def __del__(self) -> None:
        for wrapper in self.wrappers:
            with contextlib.suppress(Exception):
                wrapper.close()


_thread = threading.local()


def _watch_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        if not hasattr(_thread, "end"):
            _thread.end = _AtThreadEnd()
        _thread.end.wrappers = connections.all(initialized_only=True)


def refresh_connections() -> None:
    """Close this thread's connections that cannot be used; have Django check the others before they are."""
    for connection in _close_old():
        if connection.connection is not None:
            connection.health_check_enabled = True
            connection.health_check_done = False


def _close_old() -> list[Any]:
    """As Django's close_old_connections, which would also end the transaction that a test runs in. Returns the rest."""
    found = [one for one in connections.all(initialized_only=True) if not one.in_atomic_block]
    for connection in found:
        connection.close_if_unusable_or_obsolete()
    return found
