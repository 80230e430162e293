"""Looking at the handlers' loop and at the store from outside: is either of them blocked?

Run by the keeper, in its own thread: a handler that blocks the loop cannot hide it. It only tells; it stops nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback

from .. import events, logs
from ..options import WorkerOptions
from .line import Line
from .link import Link
from .outcomes import bounded

LOOP_BLOCKED_SECONDS = 1.0
LOOK_EVERY_SECONDS = 0.25
STACK_FRAMES_MAX = 30
STACK_CHARS_MAX = 6_000


class Watch:
    """Pings the handlers' loop and watches the store's silence; each blockage is told once."""

    def __init__(self, line: Line, link: Link, options: WorkerOptions) -> None:
        self._line, self._link = line, link
        self._store_patience = options.lease / 4
        self._store_told = False

    async def watch_forever(self) -> None:
        runner = self._link.runner
        pinged_at, expected, told = time.monotonic(), runner.beats, False
        while True:
            if runner.beats >= expected:
                pinged_at, expected, told = time.monotonic(), runner.beats + 1, False
                self._link.post(runner.beat)
            await asyncio.sleep(min(LOOK_EVERY_SECONDS, self._store_patience / 2))
            silent = time.monotonic() - pinged_at
            if runner.beats < expected and silent > LOOP_BLOCKED_SECONDS and not told:
                told = True
                self._tell_loop_blocked(silent)
            self._look_at_store()

    def _tell_loop_blocked(self, seconds: float) -> None:
        runner = self._link.runner
        frame = sys._current_frames().get(runner.thread_id)
        if frame is None:
            return
        stack = bounded("".join(traceback.format_stack(frame, limit=STACK_FRAMES_MAX)), STACK_CHARS_MAX)
        jobs = tuple(run.lease.id for run in list(runner.runs.values()) if run.task.is_async and run.entered)
        logs.loop_blocked(seconds, jobs, stack)
        self._link.tell(events.LoopBlocked(worker=self._link.worker, seconds=seconds, jobs=jobs, stack=stack))

    def _look_at_store(self) -> None:
        since = self._line.down_since
        if since is None:
            self._store_told = False
            return
        seconds = self._line.clock.steady() - since
        if seconds > self._store_patience and not self._store_told:
            self._store_told = True
            logs.store_blocked(seconds, self._line.last_error)
            self._link.tell(events.StoreBlocked(worker=self._link.worker, seconds=seconds, error=self._line.last_error))
