"""When a cron entry ticks, and what is stored of it: validation, the call it makes, its next times.

Called by `app.cron`, by operators' changes, and by the pure decisions in tick.py. Pure. Expressions have cron's five
fields, evaluated by cronsim in the entry's time zone. DST changes work as in Debian's cron: a fixed-time entry that
falls into the gap runs right after it, one that occurs twice runs once; entries with a `*` in the minute or hour field
follow real time. Entries with `every` tick that many seconds apart, counted from `anchor`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..headers import with_enqueuer
from ..names import check_name, plain, shown
from ..options import Duration, one_of, serial_group
from ..records import CronEntry, NewJob

Overlap = Literal["allow", "skip", "queue", "cancel"]
CatchUp = Literal["none", "last", "all"]

EVERY_SECONDS_MIN = 0.1
YEAR_MAX = 3000
EXPRESSION_LENGTH_MAX = 1000
_STEP_MAX = (60, 24, 31, 12, 8)  # number of values of minute, hour, day of month, month, day of week
_SAME_TICK_SECONDS = 1e-4  # two `every` times closer than this are the same tick: float sums differ
_NICKNAMES: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CronOptions:
    """How an entry ticks, as users write it; validated on creation."""

    cron: str | None = None
    every: Duration | None = None
    tz: str | tzinfo = "UTC"
    overlap: Overlap = "allow"
    catch_up: CatchUp = "last"
    window: Duration = 86400.0
    jitter: Duration = 0.0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen
        if (self.cron is None) == (self.every is None):
            raise ConfigurationError('say when: an expression such as "*/5 * * * *", or every=; one of the two.')
        put(self, "tz", zone_name(self.tz))
        if self.cron is not None:
            put(self, "cron", check_expression(self.cron))
        else:
            put(self, "every", to_seconds(self.every or 0.0, "every=", least=EVERY_SECONDS_MIN))
            if self.tz != "UTC":
                raise ConfigurationError("every= counts seconds: tz= makes no difference to it. Leave it out.")
        one_of(self.overlap, "overlap=", get_args(Overlap))
        one_of(self.catch_up, "catch_up=", get_args(CatchUp))
        put(self, "window", to_seconds(self.window, "window=", least=1.0))
        put(self, "jitter", to_seconds(self.jitter, "jitter="))
        if self.catch_up == "all" and self.overlap in ("skip", "cancel"):
            raise ConfigurationError(
                f'catch_up="all" makes several jobs at once, which overlap={self.overlap!r} would not let run. '
                'Say overlap="queue" to run them one by one, or catch_up="last".'
            )


def zone_name(zone: str | tzinfo) -> str:
    """The name of a time zone this machine knows."""
    name = getattr(zone, "key", None) or ("UTC" if zone is UTC else zone)
    if not isinstance(name, str):
        raise ConfigurationError(f'tz= takes a name such as "Europe/Berlin", or a ZoneInfo, not {shown(zone)}.')
    try:
        _zone(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f'there is no time zone {shown(name)} here. Write a name such as "Europe/Berlin"; '
            "where the system has no zones, install tzdata."
        ) from None
    return plain(name)


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)  # cronsim recognises UTC by this very object


def check_expression(text: object) -> str:
    """A five-field cron expression with single spaces; ConfigurationError explains what is wrong."""
    if not isinstance(text, str):
        raise ConfigurationError(f'a cron expression is text such as "*/5 * * * *", not {type(text).__name__}.')
    text = plain(text)
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise ConfigurationError(
            f"the cron expression has {len(text)} characters; at most {EXPRESSION_LENGTH_MAX} are read. Shorten it."
        )
    written = " ".join(_NICKNAMES.get(text.strip().lower(), text).split())
    fields = written.split(" ")
    if len(fields) != 5:
        known = ", ".join(_NICKNAMES)
        raise ConfigurationError(
            f"the cron expression {shown(text)} has {len(fields)} fields, not 5: minute hour day-of-month month "
            f"day-of-week (or one of {known}). For seconds use every=."
        )
    for field, most in zip(fields, _STEP_MAX, strict=True):
        for step in re.findall(r"/(\d+)", field):
            if int(step) > most:
                raise ConfigurationError(
                    f"the cron expression {shown(text)} has the step {step}, and its field only {most} values. "
                    "Write a smaller step, or every= for longer times."
                )
    try:
        next(CronSim(written, datetime.now(UTC)))
    except CronSimError as error:
        raise ConfigurationError(f"the cron expression {shown(text)} cannot be read: {error}.") from None
    except StopIteration:
        raise ConfigurationError(
            f"the cron expression {shown(text)} never matches. Does that month have that day?"
        ) from None
    return written


# ---------------------------------------------------------------------- schedule


def ticks_after(entry: CronEntry, after: float) -> Iterator[float]:
    """The entry's ticks after a point in time; infinite unless there are no more."""
    return _intervals(entry, after) if entry.cron is None else _moments(entry.cron, entry.tz, after)


def next_tick(entry: CronEntry, after: float) -> float | None:
    """The first tick after a point in time; None if there are no more."""
    return next(ticks_after(entry, after), None)


def ticks_between(entry: CronEntry, start: float, end: float = math.inf) -> Iterator[float]:
    """The ticks from `start` up to, not including, `end`."""
    return takewhile(lambda at: at < end, ticks_after(entry, start - _SAME_TICK_SECONDS * 2))


def _intervals(entry: CronEntry, after: float) -> Iterator[float]:
    every = entry.every or EVERY_SECONDS_MIN
    count = max(1, int((after - entry.anchor) // every))
    while True:
        at = entry.anchor + count * every
        if at > after + _SAME_TICK_SECONDS:
            yield at
        count += 1


def _moments(cron: str, tz: str, after: float) -> Iterator[float]:
    last = after
    for moment in CronSim(cron, datetime.fromtimestamp(after, _zone(tz))):
        if moment.year >= YEAR_MAX:
            return
        at = moment.timestamp()
        if at > last:  # in an hour that occurs twice, cronsim starts from the first occurrence
            last = at
            yield at


# ---------------------------------------------------------------------- stored form


def encode_call(new: NewJob, name: str, options: CronOptions) -> bytes:
    """Encode the job an entry creates, without its id and times."""
    if new.delay is not None or new.due_at is not None:
        raise ConfigurationError(
            f"cron entry {name!r}: its jobs are due at their ticks. Leave out delay=, at= and wait=."
        )
    group = new.group
    if options.overlap == "queue":
        if group is not None:
            raise ConfigurationError(
                f'cron entry {name!r}: overlap="queue" runs its jobs one at a time in a group of its own, and its call '
                'has a group already. Say overlap="allow" and let that group order them.'
            )
        group = serial_group(f"cron/{name}")
    return msgspec.json.encode(replace(new, id="", group=group, options=with_enqueuer(new.options, "")))


def decode_call(entry: CronEntry) -> NewJob:
    """The job an entry creates; ConfigurationError if another version wrote something this one cannot read."""
    try:
        call = msgspec.json.decode(entry.call, type=NewJob)
        return replace(call, options=with_enqueuer(call.options, f"cron {entry.name}"))
    except (msgspec.MsgspecError, RecursionError):
        raise ConfigurationError(f"cron entry {entry.name!r} was written by another version. Add it again.") from None


def check_readable(entry: CronEntry) -> NewJob:
    """The job an entry creates; ConfigurationError if this version or machine cannot interpret the entry."""
    if entry.cron is not None:
        _check_times(entry.cron, entry.tz)
    return decode_call(entry)


@lru_cache(maxsize=256)
def _check_times(cron: str, tz: str) -> None:
    zone_name(tz)
    check_expression(cron)


def wanted_entry(name: str, new: NewJob, options: CronOptions, *, declared: bool) -> CronEntry:
    """An entry as code or an operator wants it, not yet placed on a timeline."""
    check_name(name, "cron entry's name")
    timing: dict[str, Any] = {"cron": options.cron, "every": options.every, "tz": options.tz}
    return CronEntry(
        name=name,
        call=encode_call(new, name, options),
        overlap=options.overlap,
        catch_up=options.catch_up,
        window=to_seconds(options.window, "window="),
        jitter=to_seconds(options.jitter, "jitter="),
        declared=declared,
        **timing,
    )


def placed(wanted: CronEntry, stored: CronEntry | None, now: float) -> CronEntry:
    """The entry to store: what is wanted, with the stored one's progress. A changed schedule starts over from now."""
    declared_at = now if wanted.declared else 0.0
    if stored is None:
        fresh = replace(wanted, anchor=now, created_at=now, declared_at=declared_at)
        return replace(fresh, next_at=next_tick(fresh, now))
    kept = replace(
        stored,
        call=wanted.call,
        cron=wanted.cron,
        every=wanted.every,
        tz=wanted.tz,
        overlap=wanted.overlap,
        catch_up=wanted.catch_up,
        window=wanted.window,
        jitter=wanted.jitter,
        declared=wanted.declared,
        declared_at=declared_at,
    )
    if (kept.cron, kept.every, kept.tz) == (stored.cron, stored.every, stored.tz) and stored.next_at is not None:
        return kept
    kept = replace(kept, anchor=now)
    return replace(kept, next_at=next_tick(kept, now))


def same_but_time(one: CronEntry, other: CronEntry) -> bool:
    """Whether they differ only in when code last declared them."""
    return replace(one, declared_at=0.0) == replace(other, declared_at=0.0)
