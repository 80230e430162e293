"""Following one job: what its handlers report, as it comes.

Called by the app on its portal. Reads the job and its log lines, ever more patiently while nothing happens; never
changes anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .backends.contract import Backend
from .clock import moment
from .errors import JobNotFound
from .lifecycle import State
from .records import JobRecord, LogLine

PAUSE_FIRST, PAUSE_GROWTH, PAUSE_MOST = 0.05, 1.5, 0.5  # seconds between two looks; news make it short again


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something a job did: `kind` is "state", "progress" or "log"."""

    kind: Literal["state", "progress", "log"]
    state: State  # the job's, when this was seen
    text: str = ""
    fraction: float | None = None  # of progress
    at: datetime | None = None  # when a log line was stored


class JobFollower:
    """Where one follower stands."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._state: State | None = None
        self._progress: tuple[float | None, str | None] = (None, None)
        self._lines: list[LogLine] = []
        self._pause = 0.0
        self.over = False

    async def look(self, backend: Backend) -> list[Step]:
        """What is new, after a pause. JobNotFound if the job is not, or no longer, there."""
        await asyncio.sleep(self._pause)
        record = await backend.get(self._id)
        if record is None:
            raise JobNotFound(self._id)
        lines = await backend.logs(self._id)  # after the job: when it has finished, no more lines come
        steps = self._new_steps(record, lines)
        self.over = record.state.finished
        if steps:
            self._pause = PAUSE_FIRST
        else:
            self._pause = min(max(PAUSE_FIRST, self._pause * PAUSE_GROWTH), PAUSE_MOST)
        return steps

    def _new_steps(self, record: JobRecord, lines: list[LogLine]) -> list[Step]:
        state = record.state
        changed = Step(kind="state", state=state, text=record.reason or "")
        steps = [changed] if state is not self._state and not state.finished else []
        fresh = new_lines(self._lines, lines)
        steps += [Step(kind="log", state=state, text=line.text, at=moment(line.at)) for line in fresh]
        progress = record.progress, record.progress_text
        if progress not in (self._progress, (None, None)):
            steps.append(Step(kind="progress", state=state, text=record.progress_text or "", fraction=record.progress))
        if state.finished:
            steps.append(changed)  # last: whoever reads it knows that nothing follows
        self._state, self._progress, self._lines = state, progress, lines
        return steps


def new_lines(before: list[LogLine], now: list[LogLine]) -> list[LogLine]:
    """The lines that came since: a store keeps the newest only, so what was seen may have lost its beginning."""
    for kept in range(min(len(before), len(now)), 0, -1):
        if now[:kept] == before[-kept:]:
            return now[kept:]
    return now
