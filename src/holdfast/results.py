"""Waiting for results, where one poll with growing pauses covers all awaited jobs, and following one job live.

Called by the app; runs on the store thread's loop. A thousand callers that wait for results cost the store as much as
one. Never writes anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from .backends.contract import Backend
from .clock import moment, to_seconds
from .errors import BackendUnavailable, HoldfastError, JobNotFound, OutcomeUnknown, ResultGone, WaitTimedOut
from .lazy import import_lazily
from .lifecycle import State
from .options import Duration
from .records import JobRecord, LogLine

if TYPE_CHECKING:
    import asyncio
else:
    import_lazily(globals(), "asyncio")

LOOK_IDS_MAX = 1000  # per call to the store
PAUSE_FIRST, PAUSE_GROWTH, PAUSE_MOST = 0.005, 1.5, 0.25  # seconds between polls; a new waiter resets it
PATIENCE_SECONDS = 10.0  # how long to tolerate a store that stopped responding


class Awaited:
    """A job that callers are waiting for."""

    __slots__ = ("callers", "ended", "seen")

    def __init__(self) -> None:
        self.ended: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self.seen = asyncio.Event()  # the store was polled since a caller began to wait
        self.callers = 0


class Waiter:
    """All waiting callers."""

    def __init__(self) -> None:
        self._awaited: dict[str, Awaited] = {}
        self._looking: asyncio.Task[None] | None = None
        self._newcomer = asyncio.Event()

    async def wait(self, id: str, timeout: Duration | None, backend: Backend) -> JobRecord:
        """The job once it has finished. WaitTimedOut, after at least one poll; ResultGone if the store lacks it."""
        seconds = None if timeout is None else to_seconds(timeout, "timeout=")
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        awaited = self._enter(id, backend)
        try:
            await awaited.seen.wait()
            left = None if deadline is None else max(0.0, deadline - loop.time())
            await asyncio.wait([awaited.ended], timeout=left)
        finally:
            self._leave(id, awaited)
        if not awaited.ended.done():
            record = await backend.get(id)
            if record is not None and not record.state.finished:
                raise WaitTimedOut(id, seconds or 0.0, record.state.value, await _unserved(backend, record))
        else:
            record = awaited.ended.result()
        if record is None:
            raise ResultGone(id)
        return record

    def _enter(self, id: str, backend: Backend) -> Awaited:
        awaited = self._awaited.get(id)
        if awaited is None:
            awaited = self._awaited[id] = Awaited()
        awaited.callers += 1
        self._newcomer.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_forever(backend))
        return awaited

    def _leave(self, id: str, awaited: Awaited) -> None:
        awaited.callers -= 1
        if not awaited.callers and self._awaited.get(id) is awaited:
            del self._awaited[id]

    # ------------------------------------------------------------------ polling

    async def _look_forever(self, backend: Backend) -> None:
        """Poll while anyone waits. A store error is raised at once to callers who have had no reply yet, and to all
        callers once it persists; a brief outage is no reason to give up a wait."""
        pause, absent_since, clock = PAUSE_FIRST, None, asyncio.get_running_loop().time
        while self._awaited:
            if self._newcomer.is_set():
                self._newcomer.clear()
                pause = PAUSE_FIRST
            try:
                await self._look(backend)
                absent_since = None
            except (BackendUnavailable, OutcomeUnknown) as error:
                absent_since = clock() if absent_since is None else absent_since
                self._fail(error, everybody=clock() - absent_since >= PATIENCE_SECONDS)
            except Exception as error:
                self._fail(error, everybody=True)
            await asyncio.sleep(PAUSE_FIRST)  # also between new waiters, so that a stream of them causes no poll storm
            await self._newcomer_within(pause - PAUSE_FIRST)
            pause = min(pause * PAUSE_GROWTH, PAUSE_MOST)

    async def _newcomer_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._newcomer.wait()
        except TimeoutError:
            pass

    async def _look(self, backend: Backend) -> None:
        ids = list(self._awaited)
        for start in range(0, len(ids), LOOK_IDS_MAX):
            asked = ids[start : start + LOOK_IDS_MAX]
            ended = await backend.ended(asked)
            for id in asked:
                awaited = self._awaited.get(id)
                if awaited is None:
                    continue
                if id in ended:
                    del self._awaited[id]  # later callers poll again: the job may have been retried
                    awaited.ended.set_result(ended[id])
                awaited.seen.set()

    def _fail(self, error: Exception, *, everybody: bool) -> None:
        failed = {id: one for id, one in self._awaited.items() if everybody or not one.seen.is_set()}
        for id, one in failed.items():
            del self._awaited[id]
            one.ended.set_exception(error)
            one.ended.exception()  # mark as retrieved: the waiter may be gone
            one.seen.set()


async def _unserved(backend: Backend, job: JobRecord) -> str:
    """A sentence if no live worker serves the job's queue."""
    try:
        live = [worker for worker in await backend.workers() if not worker.expired]
    except HoldfastError:
        return ""
    if job.state is State.RUNNING or any(job.queue in worker.queues for worker in live):
        return ""
    others = ", ".join(sorted({queue for worker in live for queue in worker.queues}))
    serve = f" (live workers serve {others})" if others else ""
    return f"No live worker serves queue {job.queue!r}{serve}. Start one: `holdfast work MODULE:APP`, or app.work()."


# ----------------------------------------------------------------------------------------------------------------------
# Following one job: its state changes, progress and log lines as they appear. Polls the job and its log lines, backing
# off while nothing changes.


PAUSE_FIRST, PAUSE_GROWTH, PAUSE_MOST = 0.05, 1.5, 0.5  # seconds between polls; news resets it


class Step(Struct, frozen=True, kw_only=True):
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
