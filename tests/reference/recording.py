"""record, and what was recorded: roll-ups and events. Called by backend.py inside its critical section."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.records import EVENTS_KEPT_MAX, ROLLUPS_PER_PRUNE_MAX
from holdfast.rollups import SPAN_SECONDS, EventPage, Recording, Rollup, RollupQuery, Span, merged, start_of


class History:
    """What a store has recorded."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.rollups: dict[Span, list[Rollup]] = {span: [] for span in SPAN_SECONDS}
        self.page = EventPage()

    def record(self, recording: Recording, wall: float) -> bool:
        if recording.worker:
            if recording.number <= self.numbers.get(recording.worker, 0):
                return False
            self.numbers[recording.worker] = recording.number
        for one in recording.rollups:
            self.add(one, wall)
        for event in recording.events:
            position = self.page.position + 1
            kept = (*self.page.events, replace(event, position=position, at=wall))[-EVENTS_KEPT_MAX:]
            self.page = EventPage(events=kept, position=position)
        self._prune("minute", recording.keep_minutes, wall)
        self._prune("hour", recording.keep_hours, wall)
        return True

    def _prune(self, span: Span, keep: float | None, wall: float) -> None:
        if keep is not None:
            old = [one for one in self.rollups[span] if one.at < wall - keep][:ROLLUPS_PER_PRUNE_MAX]
            self.rollups[span] = [one for one in self.rollups[span] if one not in old]

    def add(self, one: Rollup, wall: float) -> None:
        for span in SPAN_SECONDS:
            if span == "minute" or not one.worker:
                self.rollups[span] = merged([*self.rollups[span], replace(one, at=start_of(span, wall))])

    def found(self, query: RollupQuery) -> list[Rollup]:
        return [
            one
            for one in self.rollups[query.span]
            if query.since <= one.at < query.until
            and bool(one.worker) == query.workers
            and query.queue in (None, one.queue)
            and query.task in (None, one.task)
        ]

    def events(self, after: int | None, limit: int) -> EventPage:
        if after is None:
            return EventPage(position=self.page.position)
        first = self.page.events[0].position if self.page.events else 1
        kept = tuple(event for event in self.page.events if event.position > after)[:limit]
        position = kept[-1].position if kept else self.page.position
        return EventPage(events=kept, position=position, missed=max(0, first - 1 - after))
