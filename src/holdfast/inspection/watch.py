"""watch: events of all workers and operators, followed from any process, as the store keeps them.

Called by the app. Polls; reads only. Best effort: workers bound how many events they store, and say how many they left
out; an event that is no longer kept when a follower comes for it is counted as missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from .. import events
from ..errors import ConfigurationError
from ..lifecycle import Failure, State
from ..names import nearest
from ..queries import make_query, matches, reads_payload
from ..records import JobQuery, JobRecord
from ..rollups import EventPage, KeptEvent

if TYPE_CHECKING:
    from ..backends.contract import Backend
    from ..observer import Observer

EVERY_SECONDS = 0.5
MISSED = "no longer kept"
_STATES = {
    "started": State.RUNNING,
    "succeeded": State.SUCCEEDED,
    "retrying": State.SCHEDULED,
    "dead": State.DEAD,
    "cancelled": State.CANCELLED,
}
_decode = {name: msgspec.json.Decoder(kind).decode for name, kind in events.EVENTS.items()}


class Watch:
    """Events from a position on: `async for` in async code, `for` in sync code. It goes on until the loop is left."""

    def __init__(
        self,
        observer: Observer,
        query: str | JobQuery | None,
        names: Collection[str] | None,
        after: int | None,
        every: float,
    ) -> None:
        self._observer, self._after, self._every = observer, after, every
        self._query = None if query is None else _checked(query)
        self._names = None if names is None else frozenset(_named(name) for name in names)

    def __iter__(self) -> Iterator[events.Event]:
        while True:
            page = self._observer._do("watch", self._page(), advice="Use `async for event in app.watch()`.")
            yield from self._shown(page)
            if not page.events:
                time.sleep(self._every)

    async def __aiter__(self) -> AsyncIterator[events.Event]:
        while True:
            page = await self._observer._ado(self._page())
            for event in self._shown(page):
                yield event
            if not page.events:
                await asyncio.sleep(self._every)

    def _page(self) -> Callable[[Backend], Coroutine[Any, Any, EventPage]]:
        after = self._after
        return lambda backend: backend.events(after)

    def _shown(self, page: EventPage) -> Iterator[events.Event]:
        if page.missed and self._after is not None:
            yield events.EventsDropped(dropped={MISSED: page.missed}, position=page.position)
        for one in page.events:
            self._after = one.position
            event = _read(one)
            if event is not None and self._wants(event):
                yield event
        self._after = page.position

    def _wants(self, event: events.Event) -> bool:
        if self._names is not None and event.name not in self._names:
            return False
        return self._query is None or _matches(self._query, event)


def _checked(query: str | JobQuery) -> JobQuery:
    checked = make_query(query, {})
    if reads_payload(checked):
        raise ConfigurationError("events carry no arguments or values of jobs. Leave that condition out of the query.")
    return checked


def _named(name: str) -> str:
    if name not in events.EVENTS:
        advice = nearest(str(name), events.EVENTS) or f" Events: {', '.join(events.EVENTS)}."
        raise ConfigurationError(f"no event is named {name!r}.{advice}")
    return name


def _read(kept: KeptEvent) -> events.Event | None:
    """The event; None if this version does not know it."""
    decode = _decode.get(kept.name)
    if decode is None:
        return None
    try:
        event: events.Event = decode(kept.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return replace(event, at=kept.at, position=kept.position)


def _matches(query: JobQuery, event: events.Event) -> bool:
    """Whether a job as this event shows it matches; events about no job match by their queue and task."""
    facts = msgspec.structs.asdict(event)
    if "queue" not in facts and "task" not in facts:
        return False
    error = facts.get("error")
    shown = JobRecord(
        id=facts.get("job_id", ""),
        seq=0,
        task=facts.get("task") or "",
        queue=facts.get("queue") or "",
        state=_STATES.get(event.name, query.states[0] if query.states else State.READY),
        args=b"{}",
        group=facts.get("group"),
        attempts=facts.get("attempt", 0),
        failures=facts.get("failures", 0),
        worker=event.worker,
        created_at=event.at,
        errors=(error,) if isinstance(error, Failure) else (),
    )
    return matches(query, shown, event.at)
