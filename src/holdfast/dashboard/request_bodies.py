"""What forms and API calls may send: one struct per kind of change, with its bounds.

Read by actions.py, and by api.py for the OpenAPI document. Actions decide what is done with it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ..records import ORDER_MAX

IDS_MAX = 500  # selected jobs per request
BULK_MAX = 1000  # jobs that match a query, per request
SECONDS_MAX = 10 * 366 * 86400
Text = Annotated[str, Meta(max_length=2000)]
Delay = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]  # seconds from now


class Jobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: by their full ids, or all that match a query, at most BULK_MAX of them in one call."""

    id: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=IDS_MAX)] = []
    query: Annotated[str, Meta(max_length=4000)] | None = None
    reason: Text = ""


class Revival(Jobs, frozen=True, forbid_unknown_fields=True):
    """Dead jobs to run again, and what changes with that."""

    rate: Text = ""  # such as 10/s: they become due at that rate, the oldest first
    args: dict[str, Any] | None = None  # all arguments by name; those of the job if not given


class Rescheduling(Jobs, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Jobs that have not started, and when they are due."""

    delay: Delay


class JobsEdit(Jobs, frozen=True, forbid_unknown_fields=True):
    """Jobs that have not started, and where they go. What is not given stays."""

    queue: Text | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None


class JobEdit(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that has not started, and its new values. What is not given stays."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    args: dict[str, Any] | None = None
    queue: Text | None = None
    group: Text | None = None  # empty: none
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    order: Annotated[int, Meta(ge=-ORDER_MAX, le=ORDER_MAX)] | None = None
    delay: Delay | None = None  # due in this many seconds


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue, a group of a queue, or a task; why it is paused, or what its limits become."""

    queue: Text = ""
    group: Text = ""
    task: Text = ""
    reason: Text = ""
    limit: Text = ""  # a number, `none` to lift it, `reset` for the code's own; empty leaves it
    rate: Text = ""  # such as 5/s
    skip_dead: bool = False  # resume a group without the dead job that stops it


class QueueName(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue; to obliterate it, its name again as confirmation."""

    queue: Annotated[str, Meta(min_length=1, max_length=200)]
    confirm: Text = ""


class EntryName(Struct, frozen=True, forbid_unknown_fields=True):
    """A cron entry."""

    entry: Text
    reason: Text = ""


class Backfill(Struct, frozen=True, forbid_unknown_fields=True):
    """A cron entry and a range of time that has passed, in ISO 8601; without an offset it is UTC."""

    entry: Text
    start: Annotated[str, Meta(min_length=1, max_length=60)]
    end: Annotated[str, Meta(min_length=1, max_length=60)]


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A job to enqueue: a task of the app that the dashboard was given, and its arguments by name."""

    task: Text
    args: dict[str, Any] = {}


class WorkerAsk(Struct, frozen=True, forbid_unknown_fields=True):
    """One worker, by its full id."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]


class WorkerSlots(Struct, frozen=True, forbid_unknown_fields=True):
    """One worker, and how many slots it should use."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]
    slots: Annotated[int, Meta(ge=1, le=100_000)]


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty body."""
