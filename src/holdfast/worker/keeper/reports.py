"""Progress, log lines and slow-down requests from handlers: coalesced and written a few times a second.

`Reports` is filled by job contexts from any thread; the keeper's `ReportWriter` stores it. Best effort: a report that
cannot be stored is retried or dropped, and never changes an outcome.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from ... import events, logs
from ...context import storable
from ...errors import BackendUnavailable, HoldfastError
from ...lifecycle import Settlement
from ...records import LOGS_KEPT_MAX, Answer, Lease, Report
from .runners import Runners, Signals
from .store_client import AdaptiveLimit, StoreClient

FLUSH_WITHIN_SECONDS = 0.25  # reports are collected for this long, then written together
REPORTS_MAX = 1000  # jobs in one call


class Pending:
    """What one attempt has reported since the last flush."""

    __slots__ = ("fraction", "lease", "lines", "moved", "settles", "slow_until", "text")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.moved = False
        self.fraction: float | None = None
        self.text: str | None = None
        self.lines: list[str] = []
        self.slow_until = 0.0  # requested pause of its queue, on time.monotonic()
        self.settles = False  # the handler settles its job in its own transaction

    @property
    def slow_for(self) -> float:
        """Remaining seconds of the requested slow-down; 0 if none was requested or it has passed."""
        return max(0.0, self.slow_until - time.monotonic())


class Reports:
    """Reports that the store does not have yet; the latest progress wins.

    `on_due` is called, in the thread that reports, with the seconds after which all pending reports are to be taken:
    once for the first of them, and immediately for one that cannot wait. So nothing runs while no handler reports.
    """

    def __init__(self, on_due: Callable[[float], object] = lambda seconds: None) -> None:
        self._guard = threading.Lock()
        self.pending: dict[str, Pending] = {}  # by token
        self._on_due = on_due
        self._announced = False  # on_due was called, and all pending reports have not been taken since

    # ------------------------------------------------------------------ called by handlers, any thread

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None:
        text = None if text is None else storable(text)
        with self._guard:
            pending = self._of(lease)
            pending.moved, pending.fraction, pending.text = True, fraction, text
        self._announce()

    def line(self, lease: Lease, line: str) -> None:
        line = storable(line)
        with self._guard:
            lines = self._of(lease).lines
            lines.append(line)
            if len(lines) > LOGS_KEPT_MAX:
                del lines[0]  # the store would drop it, too
        self._announce()

    def slow_down(self, lease: Lease, seconds: float) -> None:
        with self._guard:
            pending = self._of(lease)
            pending.slow_until = max(pending.slow_until, time.monotonic() + seconds)
        self._on_due(0.0)

    def _announce(self) -> None:
        if not self._announced:  # read after the report was added: the writer that takes it later resets this
            self._announced = True
            self._on_due(FLUSH_WITHIN_SECONDS)

    def settles_itself(self, lease: Lease) -> None:
        with self._guard:
            self._of(lease).settles = True
        self._on_due(0.0)

    def _of(self, lease: Lease) -> Pending:
        pending = self.pending.get(lease.token)
        if pending is None:
            pending = self.pending[lease.token] = Pending(lease)
        return pending

    def pending_of(self, tokens: Iterable[str]) -> list[str]:
        """Which of these leases have pending reports; cheap if there are none."""
        return [token for token in tokens if token in self.pending] if self.pending else []

    def take(self, tokens: Iterable[str] | None) -> list[Pending]:
        """Take out the pending reports of these leases, or of all."""
        with self._guard:
            if tokens is None:
                taken, self.pending, self._announced = list(self.pending.values()), {}, False
                return taken
            return [one for token in tokens if (one := self.pending.pop(token, None)) is not None]

    def put_back(self, taken: list[Pending]) -> None:
        with self._guard:
            for old in taken:
                new = self._of(old.lease)
                new.lines[:0] = old.lines
                del new.lines[:-LOGS_KEPT_MAX]
                if not new.moved:
                    new.moved, new.fraction, new.text = old.moved, old.fraction, old.text
        self._announce()


class ReportWriter:
    """Stores what handlers have reported. Used by the keeper, on its loop."""

    def __init__(self, reports: Reports, store: StoreClient, runners: Runners, signals: Signals) -> None:
        self._reports, self._store, self._runners, self._signals = reports, store, runners, signals
        self.writing: frozenset[str] = frozenset()  # tokens of the reports being written
        self._limit = AdaptiveLimit(REPORTS_MAX)
        self._one_at_a_time = asyncio.Lock()

    async def flush_forever(self) -> None:
        due = self._signals.reports_due
        while True:
            await self.flush(None)
            await due.wait()
            due.clear()

    async def flush_before(self, settlements: Iterable[Settlement]) -> None:
        """Write what these attempts have reported before they are settled: settling invalidates their tokens."""
        pending, writing = self._reports.pending, self.writing
        if pending or writing:
            tokens = [one.token for one in settlements if one.token in pending or one.token in writing]
            if tokens:
                await self.flush(tokens)

    async def flush(self, tokens: Iterable[str] | None) -> None:
        """Write the pending reports of these leases, or of all. Waits for a flush in progress first."""
        async with self._one_at_a_time:
            taken = self._reports.take(tokens)
            self.writing = frozenset(pending.lease.token for pending in taken)
            self._signals.settling.update(pending.lease.token for pending in taken if pending.settles)
            try:
                await self._slow_down(taken)
                await self._report(taken, last=tokens is not None)
            finally:
                self.writing = frozenset()

    async def _report(self, taken: list[Pending], *, last: bool) -> None:
        taken = [one for one in taken if one.moved or one.lines]
        while taken:
            number = self._limit.value
            await self._report_some(taken[:number], last=last)
            taken = taken[number:]

    async def _report_some(self, taken: list[Pending], *, last: bool) -> None:
        reports = [
            Report(id=one.lease.id, token=one.lease.token, progress=one.fraction, text=one.text, lines=tuple(one.lines))
            for one in taken
        ]
        try:
            answers = await self._store.call_within(
                "report", self._limit, lambda _: self._store.backend.report(reports)
            )
        except BackendUnavailable:
            if not last:  # nothing was written: try again at the next flush, unless the job is being settled
                self._reports.put_back(taken)
            return
        except HoldfastError as error:
            logs.report_failed(error, len(taken))  # not retried: its lines might be stored twice
            return
        if self._runners.wanted("progress"):
            self._runners.emit(
                *(
                    events.Progress(
                        **events.about(one.lease, self._runners.worker), fraction=one.fraction, text=one.text
                    )
                    for one, answer in zip(taken, answers, strict=True)
                    if one.moved and answer is Answer.OK
                )
            )

    async def _slow_down(self, taken: list[Pending]) -> None:
        """Apply slow-down requests before settling the attempts that made them."""
        pauses: dict[str, float] = {}
        for one in taken:
            if one.slow_for:
                pauses[one.lease.queue] = max(pauses.get(one.lease.queue, 0.0), one.slow_for)
        for queue, seconds in pauses.items():
            try:
                await self._store.call("slow_down", self._store.backend.slow_down(queue, seconds))
            except HoldfastError as error:
                logs.slow_down_failed(queue, seconds, error)
