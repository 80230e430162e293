"""The sandbox: the user's own app on a memory store with a clock that moves only when advanced.

Used in tests: `with sandbox(app) as box:`. It swaps the app's store in place, so everything that references the app
is in the sandbox too, and restores it afterwards, even after an error. Never touches the real store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..backends.sqlite.memory import MemoryBackend
from ..clock import ManualClock
from ..context import CURRENT
from ..errors import ConfigurationError
from ..job import Job
from ..lifecycle import State
from ..options import WorkerOptions
from ..records import JobQuery
from ..store_thread import StoreHandle, forbid_running_loop
from ..task import NamedTask, Task

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..worker.embedded import Drained
    from ..worker.inline import InlineWorker

R = TypeVar("R")
TaskOrName = Task[..., Any] | NamedTask | str

_EVERYTHING = 1_000_000_000


class Sandbox:
    """The enqueued jobs, the clock, and a way to run everything."""

    def __init__(self, app: Holdfast, clock: ManualClock, gate: StoreHandle) -> None:
        self.app = app
        self.clock = clock
        self._store = gate

    # ------------------------------------------------------------------ assertions

    def enqueued(self, task: TaskOrName | None = None, /, **args: Any) -> list[Job[Any]]:
        """The stored jobs of that task (or all) with at least these arguments, oldest first, in any state."""
        query = JobQuery(task=None if task is None else _name(task), limit=_EVERYTHING)
        # The memory store responds at once, so blocking is fine even on a running loop.
        records = self._store.call(lambda backend: backend.find(query))
        jobs = [Job[Any](self.app, record) for record in reversed(records)]
        return [job for job in jobs if self._fits(job, args)]

    def _fits(self, job: Job[Any], wanted: dict[str, Any]) -> bool:
        if not wanted:
            return True
        task = self.app.find_task(job.task)
        given = {**(task.codec.defaults if task is not None else {}), **job.args}
        return all(name in given and given[name] == value for name, value in wanted.items())

    def assert_enqueued(self, task: TaskOrName, /, *, count: int | None = None, **args: Any) -> list[Job[Any]]:
        """Fail unless jobs of that task with at least these arguments exist: `count` of them, or any number."""
        found = self.enqueued(task, **args)
        if (count is None and not found) or (count is not None and len(found) != count):
            wanted = "at least one job" if count is None else f"{count} jobs"
            raise AssertionError(f"expected {wanted} of {_described(task, args)}, found {len(found)}. {self._seen()}")
        return found

    def refute_enqueued(self, task: TaskOrName, /, **args: Any) -> None:
        """Fail if a job of that task with at least these arguments exists."""
        found = self.enqueued(task, **args)
        if found:
            raise AssertionError(f"expected no job of {_described(task, args)}, found {len(found)}. {self._seen()}")

    def _seen(self) -> str:
        jobs = self.enqueued()
        listed = "; ".join(f"{job.task}({', '.join(f'{k}={v!r}' for k, v in job.args.items())})" for job in jobs[:10])
        more = f" and {len(jobs) - 10} more" if len(jobs) > 10 else ""
        return f"Enqueued: {listed}{more}." if jobs else "Nothing is enqueued."

    # ------------------------------------------------------------------ execution

    def drain(self, *, inline: bool = False, raises: bool = False, **settings: Any) -> Drained:
        """Run everything that is due; the rest stays until `clock.advance`.

        `inline` runs one job at a time in the calling thread, and so in the transaction that is open there; without it
        sync handlers run in threads of their own. `raises` (only inline) raises the first failure of a handler once
        everything has run.
        """
        forbid_running_loop("box.drain()", "box.adrain()")
        _outside_handlers()
        if not inline:
            _only_inline(raises)
            return self.app.work(drain=True, **settings)
        return self._inline(raises, settings).run_here()

    async def adrain(self, *, inline: bool = False, raises: bool = False, **settings: Any) -> Drained:
        """Like `drain`, on the running loop. Async handlers run on it; with `inline`, sync handlers block it."""
        _outside_handlers()
        if not inline:
            _only_inline(raises)
            return await self.app.awork(drain=True, **settings)
        return await self._inline(raises, settings).run()

    def _inline(self, raises: bool, settings: dict[str, Any]) -> InlineWorker:
        from ..worker.inline import InlineWorker

        if "slots" in settings:
            raise ConfigurationError("inline=True runs one job at a time, so slots= means nothing. Leave it out.")
        self.app.import_tasks()
        return InlineWorker(self.app, WorkerOptions(drain=True, slots=1, **settings), raises=raises)

    def run(self, job: Job[R], *, inline: bool = False, raises: bool = False) -> Job[R]:
        """Make a job due if it is not, run what is due, and return the refreshed job."""
        if job.refresh().state is State.SCHEDULED:
            self.app.run_now(job)
        self.drain(inline=inline, raises=raises)
        return job.refresh()

    async def arun(self, job: Job[R], *, inline: bool = False, raises: bool = False) -> Job[R]:
        """Async version of `run`."""
        if (await job.arefresh()).state is State.SCHEDULED:
            await self.app.arun_now(job)
        await self.adrain(inline=inline, raises=raises)
        return await job.arefresh()


def _outside_handlers() -> None:
    if CURRENT.get() is not None:
        raise ConfigurationError(
            "a drain was started inside a handler: it would wait until that handler has ended. What a handler "
            "enqueues is run by the drain that runs the handler."
        )


def _only_inline(raises: bool) -> None:
    if raises:
        raise ConfigurationError("raises=True is for inline=True only: the exceptions of other threads stay there.")


def _name(task: TaskOrName) -> str:
    if isinstance(task, str):
        return task
    if isinstance(task, Task | NamedTask):
        return task.name
    raise ConfigurationError(f"name a task by itself or by its name, not by a {type(task).__name__}.")


def _described(task: TaskOrName, args: dict[str, Any]) -> str:
    listed = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return f"{_name(task)}({listed})" if listed else _name(task)


@contextmanager
def sandbox(app: Holdfast, *, start: float | None = None) -> Iterator[Sandbox]:
    """Put an app in a sandbox for the length of a `with` block; `start` sets the clock, in seconds since the epoch."""
    clock = ManualClock(start)
    backend = MemoryBackend(clock)
    gate = StoreHandle(lambda: backend, clock)
    gate.rules.update({rule.name: rule for rule in app.queue_rules()})
    before = app.aim("memory://", gate)
    try:
        yield Sandbox(app, clock, gate)
    finally:
        app.aim(*before)
        gate.close()
