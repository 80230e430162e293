"""Many bound calls on their way to the store, in chunks: one chunk is one step of enqueue_many.

Called by the app. Checks that they are bound calls and belong together; does no I/O.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

from .errors import ConfigurationError
from .job import BoundCall

CHUNK_JOBS_MAX = 1000
CHUNK_BYTES_MAX = 16 << 20  # of arguments: what a slow line cannot bring within one call it never brings


def checked(call: object) -> BoundCall[Any]:
    """A bound call, and nothing else."""
    if not isinstance(call, BoundCall):
        raise ConfigurationError(f"enqueue takes bound calls, made by task.bind(…), not {type(call).__name__}.")
    return call


def shared_connection(chunk: list[BoundCall[Any]]) -> Any:
    """The caller's own connection that all of them name, or None."""
    connection = chunk[0].connection
    if any(call.connection is not connection for call in chunk):
        raise ConfigurationError("the calls of one enqueue_many() must share one connection=, or have none.")
    return connection


class _Steps:
    """Calls on their way into chunks of bounded number and bytes."""

    def __init__(self) -> None:
        self.chunk: list[BoundCall[Any]] = []
        self._size = 0

    def add(self, call: object) -> list[BoundCall[Any]] | None:
        """Take one call; answers the chunk that is full with it."""
        bound = checked(call)
        self.chunk.append(bound)
        self._size += len(bound.new.args)
        if len(self.chunk) < CHUNK_JOBS_MAX and self._size < CHUNK_BYTES_MAX:
            return None
        full, self.chunk, self._size = self.chunk, [], 0
        return full


def chunks(calls: Iterable[Any]) -> Iterator[list[BoundCall[Any]]]:
    """The calls in chunks, each as soon as it is full."""
    if not isinstance(calls, Iterable):
        raise ConfigurationError(
            f"enqueue_many() takes several bound calls, not a {type(calls).__name__}. Give a list."
        )
    steps = _Steps()
    for call in calls:
        if (full := steps.add(call)) is not None:
            yield full
    if steps.chunk:
        yield steps.chunk


async def achunks(calls: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[list[BoundCall[Any]]]:
    """As `chunks`, from async iterables too."""
    if not isinstance(calls, AsyncIterable):
        for chunk in chunks(calls):
            yield chunk
        return
    steps = _Steps()
    async for call in calls:
        if (full := steps.add(call)) is not None:
            yield full
    if steps.chunk:
        yield steps.chunk
