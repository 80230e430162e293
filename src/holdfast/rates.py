"""Rates: how many starts in how long, written by people as "100/m", and the one bucket all stores reckon with.

Called by options and the command line (parse), by records (Rate) and by the stores that keep buckets in Python. Pure. A
bucket is ONE number, `spent_until`: the moment at which it is full again. SQL and Lua repeat `bounded`, `allowed` and
`charged` word for word, so that every store answers alike.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from msgspec import Struct

from .clock import to_seconds
from .errors import ConfigurationError
from .names import shown

UNLIMITED = 1_000_000_000  # a limit or a rate this high is none: how an operator lifts what the code declares
SLACK_SHARE = 0.01  # of the window: how late a claim may come without the rate falling behind
RATE_SECONDS_MAX = 366 * 86400.0
ROUNDING = 1e-6  # seconds: what a sum of floats as large as the clock may be off; it must not cost a start

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"(\d{1,20})\s*/\s*(\d{1,20}(?:\.\d{1,20})?)?\s*([smhd])(?:\s+burst\s+(\d{1,20}))?", re.ASCII)


class Rate(Struct, frozen=True):
    """At most `count` starts in any `seconds`, evenly; it may fall behind by 1 %, never get ahead.

    With a `burst`, so many may start at once after a rest: a bucket that holds `burst` and gains `count` per `seconds`,
    so at most count + burst - 1 in any window.
    """

    count: int
    seconds: float
    burst: int | None = None

    @property
    def every(self) -> float:
        """Seconds that one start costs."""
        return self.seconds * (1.0 + SLACK_SHARE) / self.count if self.burst is None else self.seconds / self.count

    @property
    def slack(self) -> float:
        """How far ahead of its even pace the bucket may be."""
        return self.seconds * SLACK_SHARE if self.burst is None else (self.burst - 1) * self.seconds / self.count

    @property
    def none(self) -> bool:
        """Whether it is the rate that lifts all rates."""
        return self.count >= UNLIMITED

    def __str__(self) -> str:
        if self.none:
            return "none"
        unit, size = next((u, s) for u, s in reversed(_UNITS.items()) if self.seconds >= s or u == "s")
        span = self.seconds / size
        said = f"{self.count}/{'' if span == 1 else f'{span:g}'}{unit}"
        return said if self.burst is None else f"{said} burst {self.burst}"


NO_RATE = Rate(UNLIMITED, 1.0)


def parse_rate(value: object, what: str = "rate=") -> Rate:
    """A rate as people write it: "100/m", "5/10s", "100/h burst 20", or a Rate; else ConfigurationError."""
    if isinstance(value, Rate):
        return _checked(value, what)
    if isinstance(value, str):
        said = _WRITTEN.fullmatch(value.strip())
        if said is not None:
            seconds = float(said[2] or 1) * _UNITS[said[3]]
            return _checked(Rate(int(said[1]), seconds, None if said[4] is None else int(said[4])), what)
    raise ConfigurationError(f'{what} takes text such as "100/m", "5/10s" or "100/h burst 20", not {shown(value)}.')


def rate_of(count: int, per: float | timedelta, burst: int | None = None) -> Rate:
    """A rate from numbers, checked."""
    return _checked(Rate(count, to_seconds(per, "per=", least=0.001), burst), "rate=")


def _checked(rate: Rate, what: str) -> Rate:
    if isinstance(rate.count, bool) or not isinstance(rate.count, int) or not 1 <= rate.count <= UNLIMITED:
        raise ConfigurationError(
            f"{what} must allow from 1 to {UNLIMITED} starts, not {shown(rate.count)}. To stop, pause."
        )
    if not 0.001 <= rate.seconds <= RATE_SECONDS_MAX:
        raise ConfigurationError(f"{what} must be per 0.001 s to 366 days, not per {rate.seconds:g} s.")
    burst = rate.burst
    if burst is not None and (isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= UNLIMITED):
        raise ConfigurationError(f"{what} must have a burst of at least 1, not {shown(burst)}.")
    return Rate(rate.count, float(rate.seconds), burst)


def bounded(rate: Rate, spent_until: float, now: float) -> float:
    """The bucket's number, set back where this rate cannot have brought it so far ahead by now.

    So it is after the rate was raised or the clock set back; without this, one start an hour would hold a queue shut
    for that hour although it may now start ten a second. What is left is an empty bucket, never a fuller one.
    """
    empty = now + rate.slack + rate.every
    return empty if spent_until > empty + rate.every else spent_until


def allowed(rate: Rate, spent_until: float, now: float) -> int:
    """How many may start now. Differences first: they are exact, the clock plus a fraction is not."""
    room = rate.slack + ROUNDING - max(spent_until - now, 0.0)
    return 0 if room < 0.0 else math.floor(room / rate.every) + 1


def charged(rate: Rate, spent_until: float, now: float, starts: int) -> float:
    """The bucket's number after so many started in one claim."""
    return max(spent_until, now) + starts * rate.every


def opens_at(rate: Rate, spent_until: float) -> float:
    """From when on at least one more may start."""
    return spent_until - rate.slack
