"""Following one job: its state changes, progress and log lines as they appear.

Called by the app on the store thread. Polls the job and its log lines, backing off while nothing changes; never
writes anything.
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

PAUSE_FIRST, PAUSE_GROWTH, PAUSE_MOST = 0.05, 1.5, 0.5  # seconds between polls; news resets it


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One reported change of a job: `kind` is "state", "progress" or "log"."""

    kind: Literal["state", "progress", "log"]
    state: State  # the job's state when this was seen
    text: str = ""
    fraction: float | None = None  # for progress
    at: datetime | None = None  # when the log line was stored


class JobFollower:
    """The position of one follower."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._state: State | None = None
        self._progress: tuple[float | None, str | None] = (None, None)
        self._lines: list[LogLine] = []
        self._pause = 0.0
        self.over = False

    async def look(self, backend: Backend) -> list[Step]:
        """Return what is new, after a pause. JobNotFound if the job does not exist or was pruned."""
        await asyncio.sleep(self._pause)
        record = await backend.get(self._id)
        if record is None:
            raise JobNotFound(self._id)
        lines = await backend.logs(self._id)  # read after the job: a finished job gets no more lines
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
            steps.append(changed)  # last: a finished state tells the reader that nothing follows
        self._state, self._progress, self._lines = state, progress, lines
        return steps


def new_lines(before: list[LogLine], now: list[LogLine]) -> list[LogLine]:
    """The lines added since `before`: a store keeps only the newest, so lines seen earlier may be missing in front."""
    for kept in range(min(len(before), len(now)), 0, -1):
        if now[:kept] == before[-kept:]:
            return now[kept:]
    return now
