"""A cron entry's latest runs as a strip, and its next ones: a square per tick, with the state of its job.

Called by the page of cron entries. A tick's job has a known id, so a strip costs one bounded read per task. Pure except
for that read, which the page makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from msgspec import Struct

from ..cron.entry import ticks_after, ticks_between, ticks_left
from ..cron.tick import tick_id
from ..lifecycle import State
from ..records import CronEntry, JobRecord

TICKS_SHOWN = 20
NEXT_SHOWN = 3


class Tick(Struct, frozen=True, kw_only=True):
    """One time at which the entry fired, or should have; `state` is None if its job is not kept or never was."""

    at: float
    id: str
    state: State | None


class Strip(Struct, frozen=True, kw_only=True):
    """An entry's ticks around now."""

    past: tuple[Tick, ...]
    coming: tuple[float, ...]


def strip(entry: CronEntry, jobs: Mapping[str, JobRecord], now: float, coming: int = NEXT_SHOWN) -> Strip:
    """The latest ticks, oldest first, and the next ones."""
    ahead = tuple(
        islice(ticks_after(entry, now), min(coming, left) if (left := ticks_left(entry)) is not None else coming)
    )
    step = ahead[1] - ahead[0] if len(ahead) > 1 else 86400.0
    start = max(entry.created_at, now - step * (TICKS_SHOWN + 1))
    past = list(islice(ticks_between(entry, start, now), 4 * TICKS_SHOWN))[-TICKS_SHOWN:]
    made = []
    for at in past:
        id = tick_id(entry, at)
        found = jobs.get(id)
        made.append(Tick(at=at, id=id, state=None if found is None else found.state))
    return Strip(past=tuple(made), coming=() if entry.paused_at is not None else ahead)
