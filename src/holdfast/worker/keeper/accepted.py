"""Outcomes that the store has accepted: counted, logged, and emitted as events.

Used by the exchange loop. The jobs that come with the same reply are started first: with one job at a time, as in a
strict group, every line written before that is time in which nothing runs.
"""

from __future__ import annotations

from msgspec import Struct

from ... import events
from ...lifecycle import SUCCEEDED, Ending, Settlement
from ...records import Lease
from .runners import JobLog, Journal, Runners


class Tally(Struct):
    """How many of this worker's attempts succeeded and failed."""

    succeeded: int = 0
    failed: int = 0


class Accepted:
    """The accepted outcomes that have not been told yet."""

    def __init__(self, runners: Runners, journal: Journal, job_log: JobLog) -> None:
        self._runners, self._journal, self._job_log = runners, journal, job_log
        self.tally = Tally()
        self.ends: list[tuple[Lease | None, Settlement]] = []  # None: the lease is gone
        self.ended_at = 0.0  # when the keeper had them (steady)

    @property
    def listened(self) -> bool:
        """Whether a success has a listener, which should hear of it before the next job's start."""
        return self._runners.wanted("succeeded")

    def tell(self) -> None:
        """Count, log, record and emit `ends`. Repeating it does nothing."""
        if not self.ends:
            return
        ends, self.ends, ended_at = self.ends, [], self.ended_at
        journal, job_log, tally = self._journal, self._job_log, self.tally
        room, counts, successes = journal.room, journal.counts, self.listened
        succeeded, ran, seen = list[Lease](), list[float | None](), list[events.Event]()
        for lease, settlement in ends:
            if settlement.ending is SUCCEEDED:
                tally.succeeded += 1
                if lease is None:
                    continue
                succeeded.append(lease)
                ran.append(settlement.ran)
                if not (successes or len(succeeded) <= room):
                    continue
            else:
                tally.failed += settlement.failed or settlement.ending is Ending.BURIED
                if lease is None:
                    continue
                job_log.ended(lease, settlement, ended_at)
                if counts:
                    journal.ended(lease, settlement, ended_at)
            seen += self._runners.settled(lease, settlement)
        if succeeded:
            job_log.succeeded(succeeded, ran, ended_at)
        if succeeded and counts:
            journal.settled(succeeded, SUCCEEDED, ended_at)
            if not successes:
                journal.drop("succeeded", len(succeeded) - room)
        if seen:
            self._runners.emit(*seen)
