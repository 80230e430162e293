"""When a cron entry ticks, and what is stored of it: validation, the call it makes, its next times.

Called by `app.cron`, by operators' changes, and by the pure decisions in tick.py. Pure. Expressions have cron's five
fields, evaluated by cronsim in the entry's time zone. DST changes work as in Debian's cron: a fixed-time entry that
falls into the gap runs right after it, one that occurs twice runs once; entries with a `*` in the minute or hour field
follow real time. Entries with `every` tick that many seconds apart, counted from `anchor`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..headers import with_enqueuer
from ..names import check_name, plain, shown
from ..options import Duration, one_of, serial_group
from ..options.checks import optional_whole
from ..records import CronEntry, NewJob
from .calendar import NextAfter, Skip, check_moment, check_skip, name_of, times_of, without

Overlap = Literal["allow", "skip", "queue", "cancel"]
CatchUp = Literal["none", "last", "all"]

EVERY_SECONDS_MIN = 0.1
YEAR_MAX = 3000
FRESH_SECONDS = 60.0  # a tick no older than this was not missed, just noticed late
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


class CronOptions(Struct, frozen=True, kw_only=True):
    """How an entry ticks, as users write it; validated on creation."""

    cron: str | None = None
    every: Duration | None = None
    next_after: NextAfter | None = None
    tz: str | tzinfo = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    ticks: int | None = None
    offset: Duration | None = None
    skip: Skip = ()
    overlap: Overlap = "allow"
    catch_up: CatchUp = "last"
    window: Duration = 86400.0
    jitter: Duration = 0.0

    def __post_init__(self) -> None:
        put = force_setattr  # it is frozen
        if (self.cron, self.every, self.next_after).count(None) != 2:
            raise ConfigurationError(
                'say when: an expression such as "*/5 * * * *", or every=, or next_after=; one of them.'
            )
        put(self, "tz", zone_name(self.tz))
        put(self, "skip", check_skip(self.skip))
        if self.cron is not None:
            put(self, "cron", check_expression(self.cron))
        elif self.tz != "UTC" and not self.skip:
            raise ConfigurationError(
                "tz= is the time zone of an expression, and of the days in skip=; it makes no difference to every= and "
                "next_after=. Leave it out."
            )
        if self.every is not None:
            put(self, "every", to_seconds(self.every, "every=", least=EVERY_SECONDS_MIN))
        if self.next_after is not None and not callable(self.next_after):
            raise ConfigurationError("next_after= takes a function: it gets a moment and returns the first tick after.")
        self._check_bounds()
        one_of(self.overlap, "overlap=", get_args(Overlap))
        one_of(self.catch_up, "catch_up=", get_args(CatchUp))
        put(self, "window", to_seconds(self.window, "window=", least=1.0))
        put(self, "jitter", to_seconds(self.jitter, "jitter="))
        if self.catch_up == "all" and self.overlap in ("skip", "cancel"):
            raise ConfigurationError(
                f'catch_up="all" makes several jobs at once, which overlap={self.overlap!r} would not let run. '
                'Say overlap="queue" to run them one by one, or catch_up="last".'
            )

    def _check_bounds(self) -> None:
        put = force_setattr  # it is frozen
        start, end = self.starts_at, self.ends_at
        if start is not None and end is not None and end < start:
            raise ConfigurationError("end= is before start=: the entry would never tick.")
        put(self, "ticks", optional_whole("ticks=", 1)(self.ticks))
        if self.offset is None:
            return
        put(self, "offset", to_seconds(self.offset, "offset="))
        if self.next_after is not None:
            raise ConfigurationError("offset= goes with an expression or every=; next_after= chooses its times itself.")
        if self.every is not None and self.offset >= self.every:  # type: ignore[operator]  # both are floats by now
            raise ConfigurationError("offset= is a point within the interval: it must be less than every=.")
        if self.every is not None and self.start is not None:
            raise ConfigurationError("every= counts from start=, or with offset= by the clock. Give one of the two.")

    @property
    def starts_at(self) -> float | None:
        return None if self.start is None else check_moment(self.start, "start=")

    @property
    def ends_at(self) -> float | None:
        return None if self.end is None else check_moment(self.end, "end=")


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
    """The entry's ticks after a point in time; infinite unless there are no more. How many fired is not considered."""
    if entry.starts_at is not None:  # it may itself be a tick
        after = max(after, entry.starts_at - _SAME_TICK_SECONDS * 2)
    ticks = partial(_unbounded, entry)
    found = without(entry.skip, _zone(entry.tz), ticks, after) if entry.skip else ticks(after)
    end = entry.ends_at
    return found if end is None else takewhile(lambda at: at <= end + _SAME_TICK_SECONDS, found)


def next_tick(entry: CronEntry, after: float) -> float | None:
    """The first tick after a point in time; None if there are no more, or all that it may fire have fired."""
    return None if ticks_left(entry) == 0 else next(ticks_after(entry, after), None)


def ticks_left(entry: CronEntry) -> int | None:
    """How many ticks it may still fire; None: any number."""
    return None if entry.ticks is None else max(0, entry.ticks - entry.fired)


def ticks_between(entry: CronEntry, start: float, end: float = math.inf) -> Iterator[float]:
    """The ticks from `start` up to, not including, `end`."""
    return takewhile(lambda at: at < end, ticks_after(entry, start - _SAME_TICK_SECONDS * 2))


def _unbounded(entry: CronEntry, after: float) -> Iterator[float]:
    if entry.chooser:
        return (at for at in entry.times if at > after + _SAME_TICK_SECONDS)
    if entry.cron is None:
        return _intervals(entry, after)
    offset = entry.offset or 0.0
    return (at + offset for at in _moments(entry.cron, entry.tz, after - offset))


def _intervals(entry: CronEntry, after: float) -> Iterator[float]:
    """Counted from when it was stored (which is no tick), from starts_at (which is one), or by the clock."""
    every = entry.every or EVERY_SECONDS_MIN
    anchor, first = entry.anchor, 1
    if entry.offset is not None:
        anchor, first = entry.offset, 0
    elif entry.starts_at is not None:
        anchor, first = entry.starts_at, 0
    count = max(first, int((after - anchor) // every))
    while True:
        at = anchor + count * every
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
    if entry.cron is not None or entry.skip:
        _check_times(entry.cron, entry.tz)
    return decode_call(entry)


@lru_cache(maxsize=256)
def _check_times(cron: str | None, tz: str) -> None:
    zone_name(tz)
    if cron is not None:
        check_expression(cron)


def wanted_entry(
    name: str, new: NewJob, options: CronOptions, *, declared: bool, now: float | None = None
) -> CronEntry:
    """An entry as code or an operator defines it, not yet placed on a timeline. A function chooses times from `now`."""
    check_name(name, "cron entry's name")
    timing: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("cron", "every", "tz", "starts_at", "ends_at", "ticks", "offset", "skip")
    }
    if options.next_after is not None:
        if not declared:
            raise ConfigurationError("next_after= is a function: it goes with an entry that code declares, @app.cron.")
        timing["chooser"] = name_of(options.next_after)
        timing["times"] = times_of(options.next_after, (time.time() if now is None else now) - FRESH_SECONDS)
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
        chooser=wanted.chooser,
        times=_times(wanted, stored, now),
        tz=wanted.tz,
        starts_at=wanted.starts_at,
        ends_at=wanted.ends_at,
        ticks=wanted.ticks,
        offset=wanted.offset,
        skip=wanted.skip,
        overlap=wanted.overlap,
        catch_up=wanted.catch_up,
        window=wanted.window,
        jitter=wanted.jitter,
        declared=wanted.declared,
        declared_at=declared_at,
    )
    if _schedule(kept) != _schedule(stored):
        kept = replace(kept, anchor=now)
        return replace(kept, next_at=next_tick(kept, now))
    next_at = stored.next_at
    if next_at is None or ticks_left(kept) == 0 or (kept.ends_at is not None and next_at > kept.ends_at):
        next_at = next_tick(kept, now)  # it had ended, or ends earlier or later than before
    return replace(kept, next_at=next_at)


def _schedule(entry: CronEntry) -> tuple[object, ...]:
    """What decides when it ticks, apart from its end."""
    return entry.cron, entry.every, entry.chooser, entry.tz, entry.starts_at, entry.offset, entry.skip


def _times(wanted: CronEntry, stored: CronEntry, now: float) -> tuple[float, ...]:
    """The chosen times, with those of before that are due and have not fired."""
    if not wanted.chooser or wanted.chooser != stored.chooser:
        return wanted.times
    due = (at for at in stored.times if at <= now and at > (stored.last_at or 0.0))
    return tuple(sorted({*due, *wanted.times}))


def same_but_time(one: CronEntry, other: CronEntry) -> bool:
    """Whether they differ only in when code last declared them."""
    return replace(one, declared_at=0.0) == replace(other, declared_at=0.0)
