"""The worker's test bench: an app reduced to what a worker needs, and a store whose calls can be made to fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from holdfast.backends.contract import Backend
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.events import Event, Hub
from holdfast.hooks import Hooks
from holdfast.job import BoundCall
from holdfast.options import WorkerOptions
from holdfast.records import CronEntry, JobRecord, QueueRule, TaskRule
from holdfast.task import TaskRouter
from holdfast.worker.embedded import Drained, EmbeddedWorker

WAIT_SECONDS = 60
# Renewals come often, so a worker learns soon what the store knows; the lease itself outlives a slow disk.
ATTENTIVE: dict[str, Any] = {"lease": 30.0, "renew_every": 0.1}


class Faulty:
    """A backend whose calls fail on request. `lose_reply`: carried out, but the reply is lost."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[str] = []
        self._guard = threading.Lock()
        self._faults: dict[str, list[str]] = {}
        self._every: dict[str, tuple[int, str]] = {}
        self._down: set[str] = set()

    def every(self, n: int, verb: str, fault: str) -> None:
        """Every n-th call of the verb fails."""
        self._every[verb] = (n, fault)

    def lose_reply(self, verb: str, times: int = 1) -> None:
        self._faults.setdefault(verb, []).extend(["lost"] * times)

    def refuse(self, verb: str, times: int = 1) -> None:
        self._faults.setdefault(verb, []).extend(["refused"] * times)

    def cut(self, *verbs: str) -> None:
        """From now on these ("*": all) are refused, until `mend`."""
        self._down.update(verbs)

    def mend(self) -> None:
        self._down.clear()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._backend, verb)
        if not asyncio.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._guard:
                self.calls.append(verb)
                fault = self._faults[verb].pop(0) if self._faults.get(verb) else None
                n, kind = self._every.get(verb, (0, ""))
                if n and self.calls.count(verb) % n == 0:
                    fault = kind
            if self._down & {verb, "*"} or fault == "refused":
                raise BackendUnavailable(f"{verb} refused by the test. Nothing to do.")
            answer = await real(*args, **kwargs)
            if fault == "lost":
                raise OutcomeUnknown(verb)
            return answer

        return call


class Listener:
    """Events of one kind, in the order they came; on the worker's loop."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        self.seen.append(event)
        self._queue.put_nowait(event)

    async def next(self) -> Any:
        return await asyncio.wait_for(self._queue.get(), WAIT_SECONDS)


class WorkerApp(TaskRouter):
    """What a worker needs of an app."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        super().__init__()
        self._hub = Hub()
        self._hooks = Hooks()
        self.make_store = make
        self._store: Backend | None = None
        self.faulty: Faulty | None = None
        self.rules: list[QueueRule] = []
        self.entries: list[CronEntry] = []

    def _open_backend(self) -> Any:
        backend = self.make_store()
        if self.faulty is not None:
            self.faulty._backend = backend
            return self.faulty
        return backend

    def break_store(self) -> Faulty:
        """Workers started from now on get a store that can be made to fail; the test's own stays sound."""
        self.faulty = Faulty(self.make_store())
        return self.faulty

    def _queue_rules(self) -> list[QueueRule]:
        return self.rules

    def _task_rules(self) -> list[TaskRule]:
        return [rule for task in self.tasks.values() for rule in task.defaults.rules()]

    def _cron_entries(self) -> list[CronEntry]:
        return self.entries

    def listen(self, name: str) -> Listener:
        listener = Listener()
        self._hub.on(name)(listener)
        return listener

    async def store(self) -> Backend:
        if self._store is None:
            self._store = self.make_store()
            await self._store.open()
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    async def put(self, *calls: BoundCall[Any]) -> list[str]:
        store = await self.store()
        return [made.id for made in await store.enqueue([call.new for call in calls])]

    async def job(self, job_id: str) -> JobRecord:
        found = await (await self.store()).get(job_id)
        assert found is not None
        return found

    def worker(self, **options: Any) -> EmbeddedWorker:
        settings: dict[str, Any] = {"slots": 10, "poll_every": 0.05, **options}
        return EmbeddedWorker(self, WorkerOptions(**settings))

    async def drain(self, **options: Any) -> Drained:
        return await self.worker(drain=True, **options).run(signals=False)


async def soon(event: asyncio.Event) -> None:
    """Wait for an event of this loop, with a deadline."""
    await asyncio.wait_for(event.wait(), WAIT_SECONDS)
