"""The process form of the worker: `holdfast work`. One keeper (this process), a guard, and runner processes.

Called by the command line. The keeper learns from the first runner which store, queues and tasks there are; it never
imports the user's code itself. Everything else is the engine of the embedded worker with a pool in place of the local
runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..backends import make_backend, parse_url
from ..clock import Clock, SystemClock
from ..errors import ConfigurationError
from ..options import WorkerOptions
from . import wire
from .embedded import Drained
from .keeper import Keeper
from .pool import Pool
from .reports import Reports
from .staff import Plan
from .stopping import stop_signals


class ProcessWorker:
    """A worker of several processes. Run it once."""

    def __init__(
        self,
        plan: Plan,
        options: WorkerOptions,
        *,
        clock: Clock | None = None,
        announce: Callable[[wire.Hello], None] = lambda hello: None,
    ) -> None:
        self._plan, self._options, self._clock = plan, options, clock or SystemClock()
        self._announce = announce
        self._keeper: Keeper | None = None
        self._asked_early = 0

    async def run(self) -> Drained:
        """Work until stopped by a signal or, with drain, done."""
        loop = asyncio.get_running_loop()
        reports = Reports()
        pool = Pool(self._plan, self._clock, reports)
        with stop_signals(loop, self.request_stop):
            try:
                hello = await pool.open()
                self._announce(hello)
                keeper = self._keeper = self._make_keeper(hello, pool, reports)
                if self._asked_early:
                    keeper.ask_to_stop(self._asked_early)
                summary = await keeper.run(lambda: None)
            finally:
                await pool.close()
        return Drained(summary.succeeded, summary.failed, summary.left)

    def request_stop(self) -> None:
        """Ask to stop: the first time in order within the grace, the second time at once."""
        if self._keeper is None:
            self._asked_early += 1
        else:
            self._keeper.ask_to_stop()

    def _make_keeper(self, hello: wire.Hello, pool: Pool, reports: Reports) -> Keeper:
        address = parse_url(hello.url)
        if address.scheme == "memory":
            raise ConfigurationError(
                "memory:// lives inside one process, and this worker has several. Give --url, or call app.work()."
            )
        queues = self._options.queues or tuple(sorted({task.queue for task in hello.tasks}))
        if not queues:
            raise ConfigurationError(
                "this worker has nothing to serve: no task is registered and no queue named. "
                "Import the modules that define the tasks (--import), or say --queues."
            )
        return Keeper(
            backend=make_backend(address),
            rules=hello.rules,
            options=self._options,
            queues=queues,
            link=pool,
            reports=reports,
            clock=self._clock,
        )
