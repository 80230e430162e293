"""The multi-process worker behind `holdfast work`: one keeper (this process), a guard, and runner processes.

Called by the command line. The keeper learns the store, queues and tasks from the first runner; it never imports user
code. Everything else is the embedded worker's engine, with a pool instead of the in-process runner. The module also
handles signals, reaps orphans as PID 1 and watches the code for `--reload`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ... import logs
from ...backends import make_backend, parse_url, preload
from ...clock import Clock, SystemClock
from ...errors import ConfigurationError
from ...lazy import uncollected
from ...options import WorkerOptions
from ..keeper.meter import Meter
from ..keeper.reports import Reports
from ..keeper.runners import Signals
from ..keeper.shutdown import stop_signals
from . import protocol
from .health import HealthPort, MetricsPort, Notifier
from .launch import OWN_CHILDREN, Launched
from .pool import Pool
from .spawner import Plan

if TYPE_CHECKING:
    from ..embedded import Drained
    from ..keeper.keeper import Keeper

_LOOKED_AT_BYTES_MAX = 1 << 20
# Any process of the same user may send these, and by default they would end the keeper.
STRAY_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)


class Metrics(msgspec.Struct, frozen=True):
    """Where to serve the worker's metrics, and how to format them: the meter, the probes' status and Keeper.ages."""

    host: str
    port: int
    write: Callable[[Meter, Mapping[str, Any], Mapping[str, float]], bytes]


class ProcessWorker:
    """A worker with several processes. Can be run once."""

    def __init__(
        self,
        plan: Plan,
        options: WorkerOptions,
        *,
        clock: Clock | None = None,
        announce: Callable[[protocol.Hello, int], None] = lambda hello, slots: None,
        reload: bool = False,
        health: tuple[str, int] | None = None,
        metrics: Metrics | None = None,
        launched: Launched | None = None,
    ) -> None:
        self._launched = launched
        self._plan, self._options, self._clock = plan, options, clock or SystemClock()
        self._announce, self._reload, self._health, self._metrics = announce, reload, health, metrics
        self._meter = Meter() if metrics is not None else None
        self._notifier = Notifier()
        self._keeper: Keeper | None = None
        self._pool: Pool | None = None
        self._stops_before_start = 0
        self._stop_early = asyncio.Event()
        self._restart_early = ""  # why to restart as soon as the keeper works
        self._restarting = False
        self._restart_again = False
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> Drained:
        """Work until stopped by a signal or, with drain, until all work is done."""
        loop = asyncio.get_running_loop()
        signals = Signals()
        reports = Reports(signals.report_within)
        pool = self._pool = Pool(self._plan, self._clock, reports, signals, on_hello=self._learn)
        port, metrics_port = HealthPort(self.status), MetricsPort(self._numbers)
        with stop_signals(loop, self.request_stop), _own_signals(loop, self._hang_up):
            try:
                if self._health is not None:
                    logs.health_port(self._health[0], await port.start(*self._health))
                if self._metrics is not None:
                    host = self._metrics.host
                    logs.metrics_port(host, await metrics_port.start(host, self._metrics.port))
                hello = await self._first_hello(pool)
                from ..embedded import Drained

                if hello is None:
                    return Drained(0, 0, 0)
                self._announce(hello, self._slots(hello))
                keeper = self._keeper = self._make_keeper(hello, pool, reports)
                if self._stops_before_start:
                    keeper.ask_to_stop(self._stops_before_start)
                if self._reload:
                    self._spawn(watch_code(self._plan.app_dir, lambda name: self.restart(f"{name} changed")))
                self._spawn(self._notifier.feed_forever())
                summary = await keeper.run(self._on_ready)
            finally:
                self._notifier.tell("STOPPING=1")
                port.close()
                metrics_port.close()
                for task in self._background:
                    task.cancel()
                await pool.close()
        return Drained(summary.succeeded, summary.failed, summary.left)

    async def _first_hello(self, pool: Pool) -> protocol.Hello | None:
        """The first runner's hello; None if asked to stop while it is still importing."""
        opening = asyncio.ensure_future(pool.open(self._launched))
        asked = asyncio.ensure_future(self._stop_early.wait())
        await asyncio.sleep(0)  # now the runner starts, on another core
        import_engine(likely_scheme(self._plan))
        await asyncio.wait([opening, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if opening.done():
            return opening.result()
        opening.cancel()
        return None

    def status(self) -> dict[str, Any]:
        """The worker's state for probes: ready if a job could start here now or soon."""
        runners = [] if self._pool is None else self._pool.runner_views()
        worker = {} if self._keeper is None else self._keeper.status()
        able = any(runner.state == "ready" and runner.responds for runner in runners)
        well = bool(worker.get("registered")) and not (worker["fenced"] or worker["stopping"])
        return {"ready": able and well, "pid": os.getpid(), **worker, "runners": msgspec.to_builtins(runners)}

    def _numbers(self) -> Callable[[], bytes]:
        """Snapshot the worker's metrics; the returned function formats them, in any thread."""
        if self._metrics is None or self._meter is None:
            return bytes
        ages = {} if self._keeper is None else self._keeper.ages()
        return partial(self._metrics.write, self._meter.copy(), self.status(), ages)

    def _on_ready(self) -> None:
        self._notifier.tell("READY=1", f"STATUS=working for {self._plan.app}, {self._plan.runners} runners")
        if self._restart_early:
            self.restart(self._restart_early)

    def request_stop(self) -> None:
        """Request shutdown: the first request is graceful, the second immediate."""
        if self._keeper is None:
            self._stops_before_start += 1
            self._stop_early.set()
        else:
            self._keeper.ask_to_stop()

    def restart(self, why: str) -> None:
        """Replace the runners one by one, to load the current code."""
        if self._keeper is None:
            self._restart_early = why  # the first runner may have read the old code already
            return
        if self._keeper.stopping:
            return
        if self._restarting:
            self._restart_again = True  # the code changed again while new runners were starting
            return
        self._restarting = True
        logs.restarting(why)
        self._spawn(self._restart())

    async def _restart(self) -> None:
        try:
            if self._pool is not None:
                await self._pool.monitor.restart()
        finally:
            self._restarting = False
        if self._restart_again:
            self._restart_again = False
            self.restart("once more")

    def _hang_up(self) -> None:
        if sys.stdin is not None and sys.stdin.isatty():
            self.request_stop()  # the terminal was closed
        else:
            self.restart("SIGHUP")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _make_keeper(self, hello: protocol.Hello, pool: Pool, reports: Reports) -> Keeper:
        from ..keeper.keeper import Keeper

        address = parse_url(hello.url)
        if address.scheme == "memory":
            raise ConfigurationError(
                "memory:// lives inside one process, and this worker has several. Give --url, or call app.work()."
            )
        queues = self._queues(hello)
        if not queues:
            raise ConfigurationError(
                "this worker has nothing to serve: no task is registered and no queue named. "
                "Import the modules that define the tasks (--import), or say --queues."
            )
        if self._meter is not None:
            self._meter.expect((task.queue, task.name) for task in hello.tasks)
        return Keeper(
            backend=make_backend(address),
            declared=hello.declared,
            options=self._options.with_slots(self._slots(hello)),
            queues=queues,
            runners=pool,
            signals=pool.signals,
            reports=reports,
            clock=self._clock,
            unknown_delay=self._plan.unknown_delay,
            meter=self._meter,
        )

    def _queues(self, hello: protocol.Hello) -> tuple[str, ...]:
        return self._options.queues or tuple(sorted({task.queue for task in hello.tasks}))

    def _slots(self, hello: protocol.Hello) -> int:
        """Slots of all runners: as configured, else the number of runners times what one of them reports."""
        return self._plan.slots or hello.slots * self._plan.runners

    def _learn(self, hello: protocol.Hello) -> None:
        """Apply a new runner's hello: its code may serve other queues, declare something else, need threads."""
        if self._keeper is not None:
            self._keeper.serve(self._queues(hello), hello.declared, self._slots(hello))


# ----------------------------------------------------------------------------------------------------------------------
# Imports that can wait until the first runner has been started: the keeper's engine and the store's driver. Doing this
# while the runner imports the app saves a good part of the time from start to the first job.


_LIKELY = re.compile(rb"\b(sqlite|postgres|redis|valkey)[a-z]*(?:\+[a-z]+)?://")


def likely_scheme(plan: Plan) -> str:
    """A guess at the runner's store, from the options, the environment or the app's file."""
    url = plan.url or os.environ.get("HOLDFAST_URL")
    if url:
        return url.partition("://")[0].lower()
    module = os.path.join(plan.app_dir, *plan.app.partition(":")[0].split("."))
    for path in (f"{module}.py", os.path.join(module, "__init__.py")):
        try:
            with open(path, "rb") as file:
                found = _LIKELY.search(file.read(_LOOKED_AT_BYTES_MAX))
        except OSError:
            continue
        return found[1].decode() if found else ""
    return ""


def import_engine(scheme: str) -> None:
    """Import the keeper and, if it can be guessed, the store. Errors are ignored here: opening the store shows them."""
    with uncollected():
        from ..keeper import keeper  # noqa: F401

        with suppress(Exception):
            preload(scheme)


@contextmanager
def _own_signals(loop: asyncio.AbstractEventLoop, hang_up: Callable[[], None]) -> Iterator[None]:
    """Within this context, SIGHUP calls `hang_up` (unless ignored, as under nohup), stray signals are harmless and, as
    PID 1, orphans are reaped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        heard.append(signal.SIGHUP)
    for stray in STRAY_SIGNALS:  # handled, not ignored: child processes get the default back
        if signal.getsignal(stray) == signal.SIG_DFL:
            loop.add_signal_handler(stray, logs.stray_signal, stray.name)
            heard.append(stray)
    if os.getpid() == 1:
        loop.add_signal_handler(signal.SIGCHLD, reap_orphans)
        heard.append(signal.SIGCHLD)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


def reap_orphans() -> None:
    """Reap dead processes that we inherited as PID 1. The guard, our own child, is left to its Popen."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in OWN_CHILDREN:
            return
        os.waitpid(found.si_pid, os.WNOHANG)


# ----------------------------------------------------------------------------------------------------------------------
# `holdfast work --reload`, for development: polls the modification times of the Python files below a folder.


LOOK_SECONDS = 0.5
FILES_MAX = 20_000
LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


def python_files(folder: str) -> Iterator[tuple[str, int]]:
    """The Python files below a folder with their modification times, without hidden folders and installed packages."""
    count, waiting = 0, [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue  # removed meanwhile
        for entry in entries:
            if entry.name.startswith(".") or entry.name in LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                try:
                    yield entry.path, entry.stat().st_mtime_ns
                except OSError:
                    continue
                count += 1
                if count >= FILES_MAX:
                    return


async def watch_code(folder: str, changed: Callable[[str], None]) -> None:
    """Call `changed` with a file's path each time the code below `folder` differs from the last check."""
    loop = asyncio.get_running_loop()
    seen = await loop.run_in_executor(None, lambda: dict(python_files(folder)))
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await loop.run_in_executor(None, lambda: dict(python_files(folder)))
        different = now.items() ^ seen.items()
        if different:
            seen = now
            changed(min(different)[0])
