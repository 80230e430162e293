"""Commands to one worker, sent through the store: pause, resume, slots, stacks, stop.

Inherited by the app. A command is stored beside the worker's row; the worker gets it with its next renewal, carries it
out once and stores the result. These methods wait for it. Nothing here talks to the worker directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from .clock import to_seconds
from .errors import ConfigurationError, WorkerSilent
from .lazy import import_lazily
from .names import check_name, check_text, new_id
from .observer import Observer
from .options import Duration, whole
from .records import BY_CHARS_MAX
from .worker_status import Ask, Command

if TYPE_CHECKING:
    import asyncio

    from .backends.contract import Backend
else:
    import_lazily(globals(), "asyncio")

ANSWER_WITHIN_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.2


async def tell(worker: str, command: Command, timeout: float, backend: Backend) -> str:
    """Send a command to a worker and wait for its result."""
    await backend.command(worker, command)
    deadline = time.monotonic() + timeout
    while True:
        given = {one.id: one for one in await backend.commands(worker)}
        answered = given.get(command.id)
        if answered is None and command.ask == "stop":
            return "stopped"  # it stored its answer and has retired since
        if answered is not None and answered.done_at is not None:
            if answered.refused:
                raise ConfigurationError(f"worker {worker} refused {command.ask}: {answered.result}")
            return answered.result
        if time.monotonic() >= deadline or answered is None:
            raise WorkerSilent(worker, command.ask, timeout)
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def asking(
    worker: str, ask: Ask, by: str, timeout: Duration, value: int | None = None
) -> Callable[[Backend], Coroutine[Any, Any, str]]:
    """A validated command, ready to be sent."""
    command = Command(id=new_id(), ask=ask, value=value, by=check_text(by, "by")[:BY_CHARS_MAX])
    return partial(tell, check_name(worker, "worker"), command, to_seconds(timeout, "timeout="))


class WorkerCommands(Observer):
    """The app's methods about single workers. Each waits until the worker has answered, or raises WorkerSilent."""

    def pause_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Make a worker stop claiming jobs; those it runs continue. Returns its answer."""
        return self._do("pause_worker", asking(worker, "pause", by, timeout))

    async def apause_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Async version of `pause_worker`."""
        return await self._ado(asking(worker, "pause", by, timeout))

    def resume_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Make a paused worker claim jobs again."""
        return self._do("resume_worker", asking(worker, "resume", by, timeout))

    async def aresume_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Async version of `resume_worker`."""
        return await self._ado(asking(worker, "resume", by, timeout))

    def set_worker_slots(
        self, worker: str, slots: int, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS
    ) -> str:
        """Make a worker use this many slots: from 1 up to the number it was started with."""
        return self._do("set_worker_slots", asking(worker, "slots", by, timeout, whole(slots, "slots=", 1)))

    async def aset_worker_slots(
        self, worker: str, slots: int, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS
    ) -> str:
        """Async version of `set_worker_slots`."""
        return await self._ado(asking(worker, "slots", by, timeout, whole(slots, "slots=", 1)))

    def worker_stacks(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """The stacks of every thread that runs handlers of a worker, as text."""
        return self._do("worker_stacks", asking(worker, "stacks", by, timeout))

    async def aworker_stacks(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Async version of `worker_stacks`."""
        return await self._ado(asking(worker, "stacks", by, timeout))

    def stop_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Make a worker stop gracefully, as SIGTERM does. Returns when it has begun to."""
        return self._do("stop_worker", asking(worker, "stop", by, timeout))

    async def astop_worker(self, worker: str, *, by: str = "", timeout: Duration = ANSWER_WITHIN_SECONDS) -> str:
        """Async version of `stop_worker`."""
        return await self._ado(asking(worker, "stop", by, timeout))
