"""Holdfast in an ASGI program: `FastAPI(lifespan=lifespan(jobs))`, the same for Starlette and Litestar.

Called by users. Needs no web framework: all of them take a function from the program to an async context manager.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from .app import Holdfast, WorkerSettings
from .options import SLOTS_DEFAULT

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(
    app: Holdfast,
    *,
    worker: bool = False,
    queues: str | Iterable[str] | Mapping[str, int | None] | None = None,
    slots: int = SLOTS_DEFAULT,
    **settings: Unpack[WorkerSettings],
) -> Lifespan:
    """Open the store when the program starts, so that a wrong URL ends it there, and close it when the program ends.

    With `worker`, jobs run in the program's own process and on its event loop, for development and small programs; the
    other settings are the worker's. In a lifespan of your own: `async with lifespan(jobs)(api): …`.
    """

    @asynccontextmanager
    async def run(_program: Any) -> AsyncIterator[None]:
        await app.aopen()
        try:
            if worker:
                async with app.worker(queues, slots=slots, **settings):
                    yield
            else:
                yield
        finally:
            await app.aclose()

    return run
