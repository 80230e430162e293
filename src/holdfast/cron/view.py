"""A cron entry as users see it: times as aware datetimes, its call as a task with plain arguments.

Created by `app.cron`. Frozen data; does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..clock import moment
from ..errors import ConfigurationError
from ..job import plain_args
from ..records import CronEntry
from .entry import CatchUp, Overlap, decode_call


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Entry:
    """A cron entry and its progress."""

    name: str
    task: str
    queue: str
    args: Mapping[str, Any]
    cron: str | None
    every: float | None
    tz: str
    overlap: Overlap
    catch_up: CatchUp
    window: float
    jitter: float
    next_at: datetime | None  # None while paused, and if there are no more
    last_at: datetime | None  # the latest tick, fired or skipped
    last_job: str | None  # the job of the latest tick that created one
    fired: int
    skipped: int
    created_at: datetime
    declared: bool  # by code, not created at run time
    declared_at: datetime | None  # when a worker last started with code that has it
    in_code: bool | None  # whether this app's code declares it; None: the app has no tasks, so it cannot know
    paused_at: datetime | None
    paused_by: str
    pause_reason: str

    @classmethod
    def of(cls, entry: CronEntry, declared_here: Collection[str] | None) -> Entry:
        """Convert a stored entry to its public form."""
        try:
            call = decode_call(entry)
            task, queue, args = call.task, call.queue, plain_args(call.args)
        except ConfigurationError:  # written by a newer version: the rest is still worth showing
            task, queue, args = "", "", {}
        unknown = declared_here is None or not entry.declared
        return cls(
            name=entry.name,
            task=task,
            queue=queue,
            args=args,
            cron=entry.cron,
            every=entry.every,
            tz=entry.tz,
            overlap=entry.overlap,
            catch_up=entry.catch_up,
            window=entry.window,
            jitter=entry.jitter,
            next_at=None if entry.paused_at is not None else _moment(entry.next_at),
            last_at=_moment(entry.last_at),
            last_job=entry.last_job,
            fired=entry.fired,
            skipped=entry.skipped,
            created_at=moment(entry.created_at),
            declared=entry.declared,
            declared_at=_moment(entry.declared_at or None),
            in_code=None if unknown else entry.name in (declared_here or ()),
            paused_at=_moment(entry.paused_at),
            paused_by=entry.paused_by,
            pause_reason=entry.pause_reason,
        )

    @property
    def when(self) -> str:
        """When it ticks, for display."""
        if self.cron is None:
            return f"every {self.every:g} s"
        return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"

    def __repr__(self) -> str:  # arguments do not belong in logs
        return f"<Entry {self.name} {self.when} {self.task}>"


def _moment(value: float | None) -> datetime | None:
    return None if value is None else moment(value)
