"""The keyword arguments of tasks and of single calls, for type checkers. options/ and task.py check their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from .dependencies import OnParentFailure
from .job import BoundCall, Job
from .options import Chooser, Duration, OnConflict, OnTimeout, OrderChooser, QueueOptions, Retention, Unique
from .rates import Rate
from .records import KeyScope, KeyUntil, OnExpire, Revival
from .retry import Backoff, RetryPolicy


class TaskSettings(TypedDict, total=False):
    """The keyword arguments of `@app.task(...)`; TaskOptions holds the validated forms."""

    name: str
    queue: str | QueueOptions
    priority: int
    group: Chooser | None
    order: OrderChooser | None
    key: Chooser | None
    on_conflict: OnConflict
    key_scope: KeyScope
    key_until: KeyUntil | None
    window: Duration | None
    wait: Duration | None
    wait_max: Duration | None
    retry: RetryPolicy | int | Backoff | None
    timeout: Duration | None
    on_timeout: OnTimeout
    max_stalls: int
    max_starts: int | None
    isolation: Literal["none", "process"]
    memory_limit: int | None
    cpu_limit: Duration | None
    file_limit: int | None
    on_exit: Literal["crash", "failure"]
    expires: Duration | None
    on_expire: OnExpire
    retain: Duration
    remove: bool
    retain_count: int | None
    retain_dead: Duration | None
    retain_dead_count: int | None
    rate: str | Rate | None
    limit: int | None
    aliases: str | Iterable[str]
    catch_all: bool
    subscribes: str | Iterable[str]
    revive: Revival | None
    unique: Unique | None
    retention: Retention
    batch_within: Duration | None  # batch= and batch_of= are in the overloads of `task`: they change its type


class UsingSettings(TypedDict, total=False):
    """The keyword arguments of `.options(...)`: what is stored with a single job."""

    queue: str | QueueOptions
    priority: int
    group: Chooser | None
    order: OrderChooser | None
    key: Chooser | None
    on_conflict: OnConflict
    key_scope: KeyScope
    key_until: KeyUntil | None
    window: Duration | None
    wait: Duration | None
    wait_max: Duration | None
    max_stalls: int
    max_starts: int | None
    expires: Duration | None
    on_expire: OnExpire
    revive: Revival | None
    unique: Unique | None
    retention: Retention
    retry: RetryPolicy | int | None
    timeout: Duration | None
    on_timeout: OnTimeout
    retain: Duration
    remove: bool
    id: str
    delay: Duration | None
    at: datetime | None
    connection: Any
    headers: Mapping[str, str] | None
    tags: str | Iterable[str] | None
    by: str
    after: Iterable[Job[Any] | BoundCall[Any] | str] | None
    on_parent_failure: OnParentFailure
