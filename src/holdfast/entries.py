"""A cron entry as it is stored.

Called by records, backends, the ticker and the face. Frozen data; when the next tick is due is cron's business.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class CronEntry(Struct, frozen=True, kw_only=True):
    """A cron entry and where it stands. The store compares `version` and keeps the rest as it is."""

    name: str
    version: int = 0  # grows by one with every write; given by the store
    next_at: float | None = None  # the next tick that nobody has fired; None: no more
    call: bytes = b""  # the job it makes, JSON of NewJob without id and times
    cron: str | None = None  # five fields, or
    every: float | None = None  # seconds, counted from `anchor`
    anchor: float = 0.0
    tz: str = "UTC"
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    catch_up: Literal["none", "last", "all"] = "last"
    window: float = 86400.0  # seconds back that catch_up="all" goes
    jitter: float = 0.0  # seconds: each tick's job is due up to so much later
    declared: bool = False  # it comes from code: only workers whose code has it fire it
    created_at: float = 0.0
    declared_at: float = 0.0  # when code last declared it
    last_at: float | None = None  # the latest tick fired or skipped
    last_job: str | None = None  # the job of the latest tick that made one
    fired: int = 0
    skipped: int = 0
    paused_at: float | None = None
    paused_by: str = ""
    pause_reason: str = ""
