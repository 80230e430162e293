"""Progress and log lines on their way to the store: coalesced, written a few times a second.

Fed by contexts from any thread; flushed by the keeper. Best effort: a report that cannot be stored is logged and
never delays or changes an outcome.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from .. import events, logs
from ..errors import BackendUnavailable, HoldfastError
from ..records import LOGS_KEPT_MAX, Answer, Lease, Report
from .line import Line
from .link import Link
from .outcomes import storable
from .runner import about

FLUSH_EVERY_SECONDS = 0.25


class Pending:
    """What one attempt reported and nobody has taken yet."""

    __slots__ = ("fraction", "lease", "lines", "moved", "text")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.moved = False
        self.fraction: float | None = None
        self.text: str | None = None
        self.lines: list[str] = []


class Reports:
    """What handlers reported and the store does not have yet; the latest progress wins."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pending: dict[str, Pending] = {}  # by token

    # ------------------------------------------------------------------ handlers, any thread

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
                del lines[0]  # the store would drop it anyway

    def _of(self, lease: Lease) -> Pending:
        pending = self._pending.get(lease.token)
        if pending is None:
            pending = self._pending[lease.token] = Pending(lease)
        return pending

    # ------------------------------------------------------------------ the keeper

    async def flush_forever(self, line: Line, link: Link) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_SECONDS)
            if self._pending:
                await self.flush(line, link, None)

    async def flush(self, line: Line, link: Link, tokens: Iterable[str] | None) -> None:
        """Write what is pending, of these leases or of all."""
        taken = self.take(tokens)
        if not taken:
            return
        reports = [
            Report(id=one.lease.id, token=one.lease.token, progress=one.fraction, text=one.text, lines=tuple(one.lines))
            for one in taken
        ]
        try:
            answers = await line.call("report", line.backend.report(reports))
        except BackendUnavailable:
            if tokens is None:  # nothing was written: there will be another time, unless the job ends now
                self._put_back(taken)
            return
        except HoldfastError as error:
            logs.report_failed(error, len(taken))  # repeated, its lines might be stored twice
            return
        if link.wanted("progress"):
            link.tell(
                *(
                    events.Progress(**about(one.lease, link.worker), fraction=one.fraction, text=one.text)
                    for one, answer in zip(taken, answers, strict=True)
                    if one.moved and answer is Answer.OK
                )
            )

    def pending_of(self, tokens: Iterable[str]) -> list[str]:
        """Which of these leases have something pending; cheap when nothing is."""
        return [token for token in tokens if token in self._pending] if self._pending else []

    def take(self, tokens: Iterable[str] | None) -> list[Pending]:
        """Take out what is pending, of these leases or of all."""
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
