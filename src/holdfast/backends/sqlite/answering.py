"""Waiting for what the writer's thread answers, bounded: from a coroutine or from a thread.

Called by backend.py. The writer gives up on the write lock by itself; who waits longer than `seconds` waits for a disk
that hangs. What has not begun is taken back then; of the rest the fate is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import Any, TypeVar

from ...errors import BackendUnavailable, OutcomeUnknown

T = TypeVar("T")


async def answered(verb: str, future: Future[T], seconds: float) -> T:
    """What it answers. Who gives up earlier leaves the work to be done, and its answer to nobody."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile: nobody waits there any more
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(tell)
    timer = loop.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()
    if future.done():
        return future.result()
    raise _gave_up(verb, future)


def answered_here(verb: str, future: Future[T], seconds: float) -> T:
    """As `answered`, for a thread that waits."""
    try:
        return future.result(seconds)
    except TimeoutError:
        raise _gave_up(verb, future) from None
    except BaseException:
        future.cancel()  # an interrupt here must not leave the work behind
        raise


def _gave_up(verb: str, future: Future[Any]) -> BackendUnavailable | OutcomeUnknown:
    if future.cancel():
        return BackendUnavailable(f"{verb} found the store busy for too long. Nothing was changed; try again.")
    return OutcomeUnknown(verb)
