"""Progress, log lines and slow-down requests from handlers: coalesced and written a few times a second.

Filled by job contexts from any thread, flushed by the keeper. Best effort: a report that cannot be stored is retried or
dropped, and never changes an outcome.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from ... import events, logs
from ...backends.adaptive_limit import AdaptiveLimit
from ...errors import BackendUnavailable, HoldfastError
from ...records import LOGS_KEPT_MAX, Answer, Lease, Report
from ..runner.attempt import about
from ..runner.outcomes import storable
from .runners import Runners
from .store_client import StoreClient

FLUSH_EVERY_SECONDS = 0.25
REPORTS_MAX = 1000  # jobs in one call


class Pending:
    """What one attempt has reported since the last flush."""

    __slots__ = ("fraction", "lease", "lines", "moved", "slow_until", "text")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.moved = False
        self.fraction: float | None = None
        self.text: str | None = None
        self.lines: list[str] = []
        self.slow_until = 0.0  # requested pause of its queue, on time.monotonic()

    @property
    def slow_for(self) -> float:
        """Remaining seconds of the requested slow-down; 0 if none was requested or it has passed."""
        return max(0.0, self.slow_until - time.monotonic())


class Reports:
    """Reports that the store does not have yet; the latest progress wins."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pending: dict[str, Pending] = {}  # by token
        self._telling: frozenset[str] = frozenset()  # tokens of the reports being written
        self._limit = AdaptiveLimit(REPORTS_MAX)
        self._one_at_a_time = asyncio.Lock()
        self.on_urgent: Callable[[], object] = lambda: None  # a report cannot wait for the next flush; any thread

    # ------------------------------------------------------------------ called by handlers, any thread

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None:
        text = None if text is None else storable(text)
        with self._guard:
            pending = self._of(lease)
            pending.moved, pending.fraction, pending.text = True, fraction, text

    def line(self, lease: Lease, line: str) -> None:
        line = storable(line)
        with self._guard:
            lines = self._of(lease).lines
            lines.append(line)
            if len(lines) > LOGS_KEPT_MAX:
                del lines[0]  # the store would drop it, too

    def slow_down(self, lease: Lease, seconds: float) -> None:
        with self._guard:
            pending = self._of(lease)
            pending.slow_until = max(pending.slow_until, time.monotonic() + seconds)
        self.on_urgent()

    def _of(self, lease: Lease) -> Pending:
        pending = self._pending.get(lease.token)
        if pending is None:
            pending = self._pending[lease.token] = Pending(lease)
        return pending

    # ------------------------------------------------------------------ called by the keeper

    async def flush_forever(self, line: StoreClient, link: Runners) -> None:
        loop, urgent = asyncio.get_running_loop(), asyncio.Event()
        self.on_urgent = lambda: _post(loop, urgent)
        while True:
            try:
                async with asyncio.timeout(FLUSH_EVERY_SECONDS):
                    await urgent.wait()
            except TimeoutError:
                pass
            urgent.clear()
            if self._pending:
                await self.flush(line, link, None)

    async def flush(self, line: StoreClient, link: Runners, tokens: Iterable[str] | None) -> None:
        """Write the pending reports of these leases, or of all. Waits for a flush in progress first."""
        async with self._one_at_a_time:
            taken = self.take(tokens)
            self._telling = frozenset(one.lease.token for one in taken)
            try:
                await self._slow_down(line, taken)
                await self._report(line, link, taken, last=tokens is not None)
            finally:
                self._telling = frozenset()

    async def _report(self, line: StoreClient, link: Runners, taken: list[Pending], *, last: bool) -> None:
        taken = [one for one in taken if one.moved or one.lines]
        while taken:
            number = self._limit.value
            await self._report_some(line, link, taken[:number], last=last)
            taken = taken[number:]

    async def _report_some(self, line: StoreClient, link: Runners, taken: list[Pending], *, last: bool) -> None:
        reports = [
            Report(id=one.lease.id, token=one.lease.token, progress=one.fraction, text=one.text, lines=tuple(one.lines))
            for one in taken
        ]
        try:
            answers = await line.call_within("report", self._limit, lambda _: line.backend.report(reports))
        except BackendUnavailable:
            if not last:  # nothing was written: try again at the next flush, unless the job is being settled
                self._put_back(taken)
            return
        except HoldfastError as error:
            logs.report_failed(error, len(taken))  # not retried: its lines might be stored twice
            return
        if link.wanted("progress"):
            link.tell(
                *(
                    events.Progress(**about(one.lease, link.worker), fraction=one.fraction, text=one.text)
                    for one, answer in zip(taken, answers, strict=True)
                    if one.moved and answer is Answer.OK
                )
            )

    async def _slow_down(self, line: StoreClient, taken: list[Pending]) -> None:
        """Apply slow-down requests before settling the attempts that made them."""
        asked: dict[str, float] = {}
        for one in taken:
            if one.slow_for:
                asked[one.lease.queue] = max(asked.get(one.lease.queue, 0.0), one.slow_for)
        for queue, seconds in asked.items():
            try:
                await line.call("slow_down", line.backend.slow_down(queue, seconds))
            except HoldfastError as error:
                logs.slow_down_failed(queue, seconds, error)

    def pending_of(self, tokens: Iterable[str]) -> list[str]:
        """Which of these leases have reports pending or being written; cheap if there are none."""
        if not (self._pending or self._telling):
            return []
        return [token for token in tokens if token in self._pending or token in self._telling]

    def take(self, tokens: Iterable[str] | None) -> list[Pending]:
        """Take out the pending reports of these leases, or of all."""
        with self._guard:
            if tokens is None:
                taken, self._pending = list(self._pending.values()), {}
                return taken
            return [one for token in tokens if (one := self._pending.pop(token, None)) is not None]

    def _put_back(self, taken: list[Pending]) -> None:
        with self._guard:
            for old in taken:
                new = self._of(old.lease)
                new.lines[:0] = old.lines
                del new.lines[:-LOGS_KEPT_MAX]
                if not new.moved:
                    new.moved, new.fraction, new.text = old.moved, old.fraction, old.text


def _post(loop: asyncio.AbstractEventLoop, urgent: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(urgent.set)
    except RuntimeError:
        pass  # the loop has ended, so nothing is left to notify
