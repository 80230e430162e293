"""A cron entry as stored. When its next tick is due is decided in cron/.

Called by backends, which compare its version and keep the rest as given, and by cron/. Holds no behaviour.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class CronEntry(Struct, frozen=True, kw_only=True):
    """A cron entry and its progress. The store compares `version` and stores the rest as given."""

    name: str
    version: int = 0  # increases by one with every write; assigned by the store
    next_at: float | None = None  # the next tick that has not fired; None: no more
    call: bytes = b""  # the job it creates, JSON of NewJob without id and times
    cron: str | None = None  # five fields, or
    every: float | None = None  # seconds, counted from `anchor`, or
    chooser: str = ""  # the name of the function in the code that chose `times`
    times: tuple[float, ...] = ()
    anchor: float = 0.0
    tz: str = "UTC"
    starts_at: float | None = None  # no tick before
    ends_at: float | None = None  # no tick after
    ticks: int | None = None  # it has ended once this many have fired
    offset: float | None = None  # seconds after each tick of `cron`; `every` counts from this point of its interval
    skip: tuple[str, ...] = ()  # days without ticks, in `tz`: MON … SUN, then ISO dates
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    catch_up: Literal["none", "last", "all"] = "last"
    window: float = 86400.0  # how far back catch_up="all" goes, in seconds
    jitter: float = 0.0  # seconds: each tick's job is due up to this much later
    declared: bool = False  # it comes from code: only workers whose code has it fire it
    created_at: float = 0.0
    declared_at: float = 0.0  # when code last declared it
    last_at: float | None = None  # the latest tick fired or skipped
    last_job: str | None = None  # the job of the latest tick that created one
    fired: int = 0
    skipped: int = 0
    paused_at: float | None = None
    paused_by: str = ""
    pause_reason: str = ""
