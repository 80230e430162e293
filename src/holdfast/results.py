"""Waiting for results: one look at the store for all jobs somebody waits for, ever more patiently.

Kept by the gate, called by the app; lives on the portal's loop. A thousand callers that wait cost the store as much as
one. Never changes anything.
"""

from __future__ import annotations

import asyncio

from .backends.contract import Backend
from .clock import to_seconds
from .errors import BackendUnavailable, OutcomeUnknown, ResultGone, WaitTimedOut
from .options import Duration
from .records import JobRecord

LOOK_IDS_MAX = 1000  # in one call to the store
PAUSE_FIRST, PAUSE_GROWTH, PAUSE_MOST = 0.005, 1.5, 0.25  # seconds between two looks; a newcomer makes it short again
PATIENCE_SECONDS = 10.0  # with a store that answered before and does not now


class Awaited:
    """A job somebody waits for."""

    __slots__ = ("callers", "ended", "seen")

    def __init__(self) -> None:
        self.ended: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self.seen = asyncio.Event()  # the store was asked since somebody began to wait
        self.callers = 0


class Waiter:
    """Who waits for what."""

    def __init__(self) -> None:
        self._awaited: dict[str, Awaited] = {}
        self._looking: asyncio.Task[None] | None = None
        self._newcomer = asyncio.Event()

    async def wait(self, id: str, timeout: Duration | None, backend: Backend) -> JobRecord:
        """The job once it finished. WaitTimedOut, after at least one look; ResultGone if the store does not know it."""
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
                raise WaitTimedOut(id, seconds or 0.0, record.state.value)
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

    # ------------------------------------------------------------------ looking

    async def _look_forever(self, backend: Backend) -> None:
        """Look while anybody waits. An error of the store is told at once to who was not answered yet, and to everybody
        once it has lasted; a moment's absence is no reason to give up a wait."""
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
            await asyncio.sleep(PAUSE_FIRST)  # also between newcomers: a stream of them is no storm
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
                    del self._awaited[id]  # whoever asks from now on looks anew: it may have been retried
                    awaited.ended.set_result(ended[id])
                awaited.seen.set()

    def _fail(self, error: Exception, *, everybody: bool) -> None:
        failed = {id: one for id, one in self._awaited.items() if everybody or not one.seen.is_set()}
        for id, one in failed.items():
            del self._awaited[id]
            one.ended.set_exception(error)
            one.ended.exception()  # looked at: whoever waited may be gone
            one.seen.set()
