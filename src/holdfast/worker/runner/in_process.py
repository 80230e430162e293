"""The embedded worker's runner: handlers run on the caller's loop and in threads of this process.

Created by the embedded worker, called by the keeper from its own thread, with one thread-safe call per batch. It
monitors the handlers' loop from outside, so it notices a handler that blocks it. It cannot kill: a thread runs until it
ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from ... import events, logs
from ...records import Lease
from ..keeper.runners import Runners
from .attempt import Runner, Stop
from .outcomes import stack_of

LOOP_BLOCKED_SECONDS = 1.0
LOOK_EVERY_SECONDS = 0.25


class InProcessRunners(Runners):
    """One runner in this process."""

    def __init__(self, runner: Runner, hub: events.Hub) -> None:
        super().__init__()
        self._runner, self._hub = runner, hub

    def name(self, worker: str) -> None:
        self.worker = self._runner.worker = worker

    def wanted(self, *names: str) -> bool:
        return any(self._hub.wanted(name) for name in names)

    def room(self, free: int) -> int:
        return free

    def knows(self, task: str) -> bool:
        return self._runner.knows(task)

    def start(self, leases: Sequence[Lease]) -> None:
        self._call(self._runner.start, leases)

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        if leases:
            marked = [(lease.id, lease.token) for lease in leases]
            self._runner.warn(marked, reason)  # takes effect even if the loop is blocked
            self._call(self._runner.stop, marked, reason)

    def stop_all(self, reason: Stop) -> None:
        self._runner.warn_all()
        self._call(self._runner.stop_all, reason)

    def allow_starts(self) -> None:
        self._runner.barred = False

    def running(self) -> tuple[str, ...]:
        return tuple(self._runner.runs)

    def deliver(self, seen: list[events.Event]) -> None:
        self._call(self._runner.deliver, seen)

    def renewed(self, fence_at: float, margin: float) -> None:
        pass  # nothing here could enforce it; the keeper's fence tells the handlers to stop

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._runner.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self.broken:
                self.broken = True
                logs.loop_gone(self.worker)

    # ------------------------------------------------------------------ liveness

    async def watch_forever(self) -> None:
        """Ping the handlers' loop; report each blockage once."""
        runner = self._runner
        pinged_at, expected, told = time.monotonic(), runner.beats, False
        while True:
            if runner.beats >= expected:
                pinged_at, expected, told = time.monotonic(), runner.beats + 1, False
                self._call(runner.beat)
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            silent = time.monotonic() - pinged_at
            if runner.beats < expected and silent > LOOP_BLOCKED_SECONDS and not told:
                told = True
                self._tell_blocked(silent)

    def _tell_blocked(self, seconds: float) -> None:
        runner = self._runner
        stack = stack_of(runner.thread_id)
        jobs = tuple(run.lease.id for run in list(runner.runs.values()) if run.task.is_async and run.entered)
        logs.loop_blocked(seconds, jobs, stack)
        self.tell(events.LoopBlocked(worker=self.worker, seconds=seconds, jobs=jobs, stack=stack))
