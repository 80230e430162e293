"""The sandbox: the user's own app on a memory store with a clock that moves only when advanced.

Used in tests: `with sandbox(app) as box:`. It swaps the app's store in place, so everything that references the app
is in the sandbox too, and restores it afterwards, even after an error. Never touches the real store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import ManualClock
from ..codec import decode_plain
from ..context import CURRENT
from ..errors import ConfigurationError
from ..job import BoundCall, Job
from ..lifecycle import State
from ..named_task import NamedTask
from ..options import WorkerOptions
from ..records import JobQuery
from ..store_thread import StoreHandle, forbid_running_loop
from ..task import Task
from .transactions import SandboxBackend

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..worker.embedded import Drained
    from ..worker.inline import InlineWorker

R = TypeVar("R")
Wanted = Task[..., Any] | NamedTask | BoundCall[Any] | str

_EVERYTHING = 1_000_000_000


class Sandbox:
    """The enqueued jobs, the clock, and a way to run everything."""

    def __init__(self, app: Holdfast, clock: ManualClock, gate: StoreHandle, backend: SandboxBackend) -> None:
        self.app = app
        self.clock = clock
        self._store = gate
        self._backend = backend

    # ------------------------------------------------------------------ assertions

    def enqueued(self, what: Wanted | None = None, /, **args: Any) -> list[Job[Any]]:
        """The stored jobs of that task (or all) with at least these arguments, oldest first, in any state.

        A bound call stands for its task with exactly its arguments.
        """
        query = JobQuery(task=None if what is None else _name(what), limit=_EVERYTHING)
        # The memory store responds at once, so blocking is fine even on a running loop.
        records = self._store.call(lambda backend: backend.find(query))
        return self._fitting([Job[Any](self.app, record) for record in reversed(records)], what, args)

    def pending(self, what: Wanted | None = None, /, **args: Any) -> list[Job[Any]]:
        """The jobs enqueued with connection= in transactions that are still open. They are not in `enqueued` yet."""
        name = None if what is None else _name(what)
        jobs = [Job[Any](self.app, record) for record in self._backend.pending()]
        return self._fitting([job for job in jobs if name in (None, job.task)], what, args)

    def commit(self) -> None:
        """Treat the open transactions that jobs wait for as committed: for tests that roll everything back at the end.

        It does not touch the transactions themselves.
        """
        self._backend.commit()

    def _fitting(self, jobs: list[Job[Any]], what: Wanted | None, args: dict[str, Any]) -> list[Job[Any]]:
        if not isinstance(what, BoundCall):
            return [job for job in jobs if self._fits(job, args)]
        if args:
            raise ConfigurationError(
                "a bound call has its arguments already. Give either a call, or a task and arguments."
            )
        return [job for job in jobs if decode_plain(job._record.args) == decode_plain(what.new.args)]

    def _fits(self, job: Job[Any], wanted: dict[str, Any]) -> bool:
        if not wanted:
            return True
        task = self.app.find_task(job.task)
        given = {**(task._codec.defaults if task is not None else {}), **job.args}
        return all(name in given and given[name] == value for name, value in wanted.items())

    def assert_enqueued(self, what: Wanted, /, *, count: int | None = None, **args: Any) -> list[Job[Any]]:
        """Fail unless jobs of that task with at least these arguments exist: `count` of them, or any number."""
        found = self.enqueued(what, **args)
        if (count is None and not found) or (count is not None and len(found) != count):
            wanted = "at least one job" if count is None else f"{count} job{'' if count == 1 else 's'}"
            raise AssertionError(
                f"expected {wanted} of {self._described(what, args)}, found {len(found)}.{self._seen()}"
            )
        return found

    def assert_not_enqueued(self, what: Wanted | None = None, /, **args: Any) -> None:
        """Fail if a job of that task with at least these arguments exists; without a task, if any job does."""
        found = self.enqueued(what, **args)
        if found:
            unwanted = "" if what is None else f" of {self._described(what, args)}"
            raise AssertionError(f"expected no job{unwanted}, found {len(found)}.{self._seen()}")

    refute_enqueued = assert_not_enqueued

    def _seen(self) -> str:
        """What there is, for the message of a failed assertion."""
        stored, waiting = self.enqueued(), self.pending()
        text = _listed("Enqueued", stored) if stored else "\nNothing is enqueued."
        if waiting:
            text += _listed("Not counted, as their transactions have not been committed (see box.commit())", waiting)
        return text

    def _described(self, what: Wanted, args: dict[str, Any]) -> str:
        if isinstance(what, BoundCall):
            args = decode_plain(what.new.args)
        listed = ", ".join(f"{name}={value!r}" for name, value in args.items())
        return f"{_name(what)}({listed})" if listed else _name(what)

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


def _name(what: Wanted) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, Task | NamedTask):
        return what.name
    if isinstance(what, BoundCall):
        return what.new.task
    kind = type(what).__name__
    raise ConfigurationError(f"name a task by itself, by its name or by a bound call, not by a {kind}.")


def _listed(title: str, jobs: list[Job[Any]]) -> str:
    lines = [f"  {job.task}({', '.join(f'{k}={v!r}' for k, v in job.args.items())})  {job.state}" for job in jobs[:20]]
    if len(jobs) > 20:
        lines.append(f"  and {len(jobs) - 20} more")
    return "\n".join([f"\n{title}:", *lines])


@contextmanager
def sandbox(app: Holdfast, *, start: float | None = None) -> Iterator[Sandbox]:
    """Put an app in a sandbox for the length of a `with` block; `start` sets the clock, in seconds since the epoch."""
    clock = ManualClock(start)
    backend = SandboxBackend(clock)
    gate = StoreHandle(lambda: backend, clock)
    gate.rules.update({rule.name: rule for rule in app._queue_rules()})
    before = app._aim("memory://", gate)
    try:
        yield Sandbox(app, clock, gate, backend)
    finally:
        backend.stop_following()
        app._aim(*before)
        gate.close()
