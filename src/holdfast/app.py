"""The app: a store, the registered tasks, and every operation on them.

Called by users and by the command line; the worker reads its tasks, rules and event hub. Construction does no I/O: the
store is opened at first use. Every sync method has an `a…` twin; both run their store calls on the app's store thread.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from . import events
from .backends import Address, make_backend, parse_url
from .backends.contract import Backend
from .clock import Clock, ManualClock, SystemClock, to_seconds
from .errors import ConfigurationError
from .hooks import AsyncMiddleware, E, Form, Hooks, L, M, Middleware
from .lazy import import_lazily
from .named_task import NamedTask
from .names import check_list, check_name, known_options, once_public, renamed
from .operator import Dead, Groups, Queues, RegisteredTasks
from .options import (
    ARGS_BYTES_MAX,
    LEASE_DEFAULT,
    RESULT_BYTES_MAX,
    SLOTS_DEFAULT,
    Duration,
    LogJobs,
    OnFence,
    Priorities,
    QueueOptions,
    QueueOrder,
    TaskOptions,
    WorkerOptions,
    whole,
)
from .producer import Producer
from .rates import Rate
from .records import CronEntry, Dump, GroupOrder, JobOrder, OnDead, QueueRule, TaskRule
from .store_thread import StoreHandle, forbid_running_loop
from .task import Placement, TaskRouter, UsingSettings, refine
from .unique_keys import Keys

if TYPE_CHECKING:
    import asyncio

    from .cron.api import Cron
    from .leased_jobs import Leases
    from .worker.embedded import Drained, EmbeddedWorker
else:
    import_lazily(globals(), "asyncio")

URL_DEFAULT = "sqlite:///holdfast.db"


class WorkerSettings(TypedDict, total=False):
    """A worker's finer settings; WorkerOptions validates them together."""

    renew_every: Duration | None
    sweep_every: Duration | Literal["auto"] | None
    call_timeout: Duration | None
    fence_margin: Duration | None
    poll_every: Duration | None
    task_slots: Mapping[str, int] | None
    group_slots: int | None
    priority: Priorities | None
    name: str
    weights: Mapping[str, int] | None
    queue_order: QueueOrder
    history: bool
    history_minutes: Duration
    log_jobs: LogJobs | None


class Holdfast(Producer, events.Listens):
    """An app: `app = Holdfast("sqlite:///jobs.db")`."""

    @known_options("Holdfast()")
    def __init__(
        self,
        url: str | None = None,
        *,
        imports: Iterable[str] = (),
        args_bytes_max: int = ARGS_BYTES_MAX,
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        super().__init__()
        chosen = url if url is not None else os.environ.get("HOLDFAST_URL") or URL_DEFAULT
        self._address: Address = parse_url(chosen)
        self.imports: tuple[str, ...] = _modules(imports)
        self.args_bytes_max = whole(args_bytes_max, "args_bytes_max=", 2)
        self.result_bytes_max = whole(result_bytes_max, "result_bytes_max=", 2)
        self._hub = events.Hub()
        self._hooks = Hooks()
        self.dead = Dead(self)
        self.groups = Groups(self)
        self.queues = Queues(self)
        self.keys = Keys(self)
        self._store = StoreHandle(partial(make_backend, self._address), SystemClock())

    @known_options("app.configure()")
    def configure(
        self,
        url: str | None = None,
        *,
        imports: Iterable[str] | None = None,
        args_bytes_max: int | None = None,
        result_bytes_max: int | None = None,
    ) -> None:
        """Set the constructor's parameters later: in an application factory, or for a test. Omitted ones stay.

        Only while the store is not in use: before the first call, or after `close()`. Tasks, queues and hooks stay.
        """
        if isinstance(self._clock, ManualClock):
            raise ConfigurationError("this app is in a sandbox, which has its own store. Configure it outside.")
        if self._store.lent or self._store.is_open:
            raise ConfigurationError(
                f"this app already uses {self.safe_url}, so it cannot be configured any more. Call app.configure() "
                "before the first job is enqueued or run, or app.close() first."
            )
        modules = None if imports is None else _modules(imports)
        args_max = None if args_bytes_max is None else whole(args_bytes_max, "args_bytes_max=", 2)
        result_max = None if result_bytes_max is None else whole(result_bytes_max, "result_bytes_max=", 2)
        if url is not None:
            self._aim(url)
        self.imports = self.imports if modules is None else modules
        self.args_bytes_max = self.args_bytes_max if args_max is None else args_max
        self.result_bytes_max = self.result_bytes_max if result_max is None else result_max

    @cached_property
    def cron(self) -> Cron:
        """Cron entries: declare them, or read and change the stored ones."""
        from .cron.api import Cron  # most producers have none

        return Cron(self)

    # ------------------------------------------------------------------ the store

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def safe_url(self) -> str:
        """The URL with its password masked, safe to display."""
        return self._address.safe_url

    @property
    def _backend(self) -> Backend:
        """The app's own backend, already open."""
        return self._store.open()

    def _open_backend(self) -> Backend:
        """A new, unopened backend for the same store, to use on another thread; memory:// shares the app's only one."""
        self._store.lent = True
        if self._address.scheme == "memory":
            return self._store.unopened
        return make_backend(self._address)

    @property
    def _clock(self) -> Clock:
        """The clock used by stores that keep time in this process."""
        return self._store.clock

    def _dump(self) -> Dump:
        """Everything the store holds, as plain values: for audits and bug reports."""
        return self._do("dump", lambda backend: backend.dump())

    async def _adump(self) -> Dump:
        """Async version of `dump`."""
        return await self._ado(lambda backend: backend.dump())

    def _aim(self, store: str | Address, gate: StoreHandle | None = None) -> tuple[Address, StoreHandle]:
        """Switch to another store: `--url`, the sandbox. Tasks, events and declared queues stay.

        Returns the previous address and handle; pass them back to restore it. Opens and closes nothing.
        """
        before = self._address, self._store
        self._address = parse_url(store) if isinstance(store, str) else store
        if gate is None:
            gate = StoreHandle(partial(make_backend, self._address), self._clock)
            gate.rules.update(self._store.rules)
        self._store = gate
        return before

    # ------------------------------------------------------------------ tasks and queues

    def _own_app(self) -> Holdfast:
        return self

    @property
    def tasks(self) -> RegisteredTasks:
        """The registered tasks by name; `app.tasks.limit(…)` and `app.tasks.list()` call the store."""
        return RegisteredTasks(self, super().tasks)

    def _known_tasks(self, given: Collection[str] | None) -> Collection[str] | None:
        # An app without tasks belongs to a producer or an operator: it cannot know which tasks the workers have.
        return self.tasks or None if given is None else given

    def include(self, tasks: TaskRouter) -> None:
        """Register the tasks of a reusable module."""
        if not isinstance(tasks, TaskRouter) or isinstance(tasks, Holdfast):
            raise ConfigurationError(f"include() takes a holdfast.TaskRouter, not {type(tasks).__name__}.")
        for task in tasks.tasks.values():
            if self.tasks.get(task.name) is not task:
                self._register(task)
                task._include_in(self)

    def task_by_name(self, name: str, /, **settings: Unpack[UsingSettings]) -> NamedTask:
        """A task by name, for a producer that does not have its code."""
        return NamedTask(self, check_name(name, "task name"), *refine(TaskOptions(), Placement(), settings))

    def named(self, name: str, /, **settings: Unpack[UsingSettings]) -> NamedTask:
        """The former name of `task_by_name`."""
        renamed("app.named(…)", "app.task_by_name(…)")
        return self.task_by_name(name, **settings)

    @known_options("app.queue()")
    def queue(
        self,
        name: str,
        *,
        limit: int | None = None,
        rate: str | Rate | None = None,
        group_limit: int | None = 1,
        group_order: GroupOrder = "strict",
        group_rate: str | Rate | None = None,
        aging: Duration | None = None,
        shards: int = 1,
        group_prefetch: int = 1,
        on_dead: OnDead = "go_on",
        order: JobOrder = "fifo",
        order_window: Duration | None = None,
        dead_queue: str | None = None,
    ) -> QueueOptions:
        """Declare a queue's rule; it is stored when the store is next used. The latest declaration wins.

        limit and rate apply across all workers; group_limit (None: unlimited) and group_rate apply to each group.
        group_prefetch is how many consecutive jobs of a strict group a worker may lease together, to run them one after
        the other. With on_dead="stop" a strict group stops at a job that dies, until somebody revives or discards it or
        resumes the group without it; with "go_on" its next job runs. With order="lifo" the newest of the jobs without a
        group goes first, within a priority. order_window is how long a job with `order=` (of the task or the call)
        waits for lower ones of its group to arrive. dead_queue names another queue that gets a copy of every job that
        dies in this one; the dead letter stays here.
        """
        options = QueueOptions(
            name=name,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_order=group_order,
            group_rate=group_rate,
            aging=aging,
            shards=shards,
            group_prefetch=group_prefetch,
            on_dead=on_dead,
            order=order,
            order_window=order_window,
            dead_queue=dead_queue,
        )
        self._store.rules[options.name] = options.rule()
        return options

    def _queue_rules(self) -> list[QueueRule]:
        """The declared queue rules."""
        return list(self._store.rules.values())

    def _task_rules(self) -> list[TaskRule]:
        """What the store must know about each registered task; workers declare it when they start."""
        return [rule for task in self.tasks.values() for rule in task.defaults.rules()]

    def _cron_entries(self) -> list[CronEntry]:
        """The cron entries the code declares; workers store them when they start."""
        return self.cron.declared()

    @overload
    def around(self, fn: M, /) -> M: ...
    @overload
    def around(self, fn: Middleware, twin: AsyncMiddleware, /) -> None: ...
    @overload
    def around(self, /, *, only: Form) -> Callable[[M], M]: ...
    def around(self, fn: Any = None, twin: Any = None, /, *, only: Form | None = None) -> Any:
        """Register middleware: `@app.around def trace(ctx, call_next): return call_next()`, or an `async def`.

        It runs around every attempt, in the handler's own thread or task; the first registered is the outermost.
        `app.around(trace, atrace)` registers both forms, `only="sync"` leaves async handlers without it.
        """
        if fn is None:
            return partial(self._around_only, only)
        self._hooks.add_around(fn, twin, only=only)
        return fn if twin is None else None

    def _around_only(self, only: Form | None, fn: M) -> M:
        self._hooks.add_around(fn, only=only)
        return fn

    def on_startup(self, fn: L, /) -> L:
        """Register a function that opens what handlers need, once in each process that runs them, before any job.

        It takes `resources`, which handlers see as `ctx.resources`. If it raises, the process takes no jobs.
        """
        self._hooks.add_startup(fn)
        return fn

    def on_shutdown(self, fn: L, /) -> L:
        """Register a function that closes those resources when a worker ends; the last registered runs first."""
        self._hooks.add_shutdown(fn)
        return fn

    def on_enqueue(self, fn: E, /) -> E:
        """Register a function that may add headers to every call before it is stored: `def stamp(call, headers): …`.

        It runs in the caller's own thread or task and changes `headers`, a dict. If it raises, nothing is stored.
        """
        self._hooks.add_on_enqueue(fn)
        return fn

    def import_tasks(self) -> None:
        """Import the modules listed in `imports=`; only called where handlers run."""
        for module in self.imports:
            importlib.import_module(module)

    # ------------------------------------------------------------------ working

    def work(
        self,
        queues: str | Iterable[str] | Mapping[str, int | None] | None = None,
        *,
        slots: int = SLOTS_DEFAULT,
        drain: bool = False,
        lease: Duration = LEASE_DEFAULT,
        grace: Duration = 30.0,
        on_fence: OnFence = "warn",
        **settings: Unpack[WorkerSettings],
    ) -> Drained:
        """Run jobs in this process until stopped or, with `drain`, until nothing is ready or running."""
        forbid_running_loop("app.work()", "app.awork()")
        worker = self.worker(queues, slots=slots, drain=drain, lease=lease, grace=grace, on_fence=on_fence, **settings)
        return asyncio.run(worker.run())

    async def awork(
        self,
        queues: str | Iterable[str] | Mapping[str, int | None] | None = None,
        *,
        slots: int = SLOTS_DEFAULT,
        drain: bool = False,
        lease: Duration = LEASE_DEFAULT,
        grace: Duration = 30.0,
        on_fence: OnFence = "warn",
        **settings: Unpack[WorkerSettings],
    ) -> Drained:
        """Like `work`, on the running loop."""
        worker = self.worker(queues, slots=slots, drain=drain, lease=lease, grace=grace, on_fence=on_fence, **settings)
        return await worker.run()

    @known_options("app.worker()", WorkerSettings)
    def worker(
        self,
        queues: str | Iterable[str] | Mapping[str, int | None] | None = None,
        *,
        slots: int = SLOTS_DEFAULT,
        drain: bool = False,
        lease: Duration = LEASE_DEFAULT,
        grace: Duration = 30.0,
        on_fence: OnFence = "warn",
        **settings: Unpack[WorkerSettings],
    ) -> EmbeddedWorker:
        """An embedded worker: `async with app.worker(slots=10):` runs it in the background."""
        from .worker.embedded import EmbeddedWorker

        options = WorkerOptions(
            queues=queues, slots=slots, drain=drain, lease=lease, grace=grace, on_fence=on_fence, **settings
        )
        self.import_tasks()
        return EmbeddedWorker(self, options)

    @known_options("app.lease()")
    def lease(
        self, queue: str | Iterable[str], *, most: int = 1, lease: Duration = LEASE_DEFAULT, wait: Duration = 0.0
    ) -> Leases:
        """Lease jobs in a program that is not a worker: `with app.lease("mail", most=10) as jobs:`, or `async with`.

        Up to `most` jobs that are ready; if there are none, it waits up to `wait` seconds for the first, and the list
        may be empty. They are renewed until the block ends. Settle each: `job.succeed(value)`, `job.fail(error)`,
        `job.retry(after)`, `job.snooze(seconds)`, `job.bury(reason)`; what is left is released.
        """
        from .leased_jobs import Leases

        names = check_list(queue, "app.lease()")
        if not names:
            raise ConfigurationError('app.lease() needs a queue: app.lease("mail").')
        options = WorkerOptions(queues=names, slots=whole(most, "most=", 1, 100_000), lease=lease)
        return Leases(self, options, to_seconds(wait, "wait="))

    def eager(self) -> AbstractContextManager[None]:
        """`with app.eager():` runs every call at once in the calling thread, without the store. For scripts.

        enqueue() returns the finished job; what a handler raises comes out of it, and what is left is cancelled. Delays
        are skipped, `connection=` is ignored, and nothing is retried.
        """
        from .eager import eager

        return eager(self)

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Open the store now instead of at first use: sets it up, and raises here if anything is wrong with it."""
        forbid_running_loop("app.open()", "app.aopen()")
        self._store.open()

    async def aopen(self) -> None:
        """Async version of `open`."""
        await self._store.acall(_nothing)

    def close(self) -> None:
        """Close the store and end its thread. Idempotent; a later call opens them again."""
        forbid_running_loop("app.close()", "app.aclose()")
        self._store.lent = False
        self._store.close()

    async def aclose(self) -> None:
        """Async version of `close`."""
        self._store.lent = False
        await asyncio.to_thread(self._store.close)

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    if not TYPE_CHECKING:
        __getattr__ = once_public(
            "app", "adump aim backend clock cron_entries dump hooks hub open_backend queue_rules task_rules"
        )

    def __repr__(self) -> str:
        return f"<Holdfast {self.safe_url} with {len(self.tasks)} tasks>"


def _modules(imports: Iterable[str]) -> tuple[str, ...]:
    return tuple(check_name(module, "module in imports=") for module in check_list(imports, "imports="))


async def _nothing(backend: Backend) -> None:
    """No-op work for `open`: opening the store is a side effect of calling it."""
