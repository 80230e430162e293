"""Rate limits, written as "100/m": parsing, and the GCRA formula that every store uses.

Called by options and the command line (parse), by records (Rate) and by the stores that compute GCRA in Python. Pure.
The state is ONE number, `spent_until` (GCRA's theoretical arrival time): the moment at which the full allowance is
available again. SQL and Lua repeat `bounded`, `allowed` and `charged` exactly, so that all stores agree.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from msgspec import Struct

from .clock import to_seconds
from .errors import ConfigurationError
from .names import shown

UNLIMITED = 1_000_000_000  # a limit or a rate this high means none: an operator lifts what the code declares with it
SLACK_SHARE = 0.01  # of the window: how late a claim may come without the rate falling behind
RATE_SECONDS_MAX = 366 * 86400.0
ROUNDING = 1e-6  # seconds: rounding error of a float sum as large as the clock; it must not cost a start

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(
    r"(?P<count>\d{1,20})\s*/\s*(?P<number>\d{1,20}(?:\.\d{1,20})?)?\s*(?P<unit>[smhd])(?:\s+burst\s+(?P<burst>\d{1,20}))?",
    re.ASCII,
)


class Rate(Struct, frozen=True):
    """At most `count` starts in any `seconds`, evenly spaced; may fall behind by 1 %, never gets ahead.

    With a `burst`, up to `burst` may start at once after an idle period: a bucket that holds `burst` and gains `count`
    per `seconds`, so at most count + burst - 1 in any window.
    """

    count: int
    seconds: float
    burst: int | None = None

    @property
    def every(self) -> float:
        """Seconds that one start costs (GCRA's emission interval)."""
        return self.seconds * (1.0 + SLACK_SHARE) / self.count if self.burst is None else self.seconds / self.count

    @property
    def slack(self) -> float:
        """How far ahead of its even pace the rate may be (GCRA's tolerance)."""
        return self.seconds * SLACK_SHARE if self.burst is None else (self.burst - 1) * self.seconds / self.count

    @property
    def none(self) -> bool:
        """Whether this is the rate that lifts all rates."""
        return self.count >= UNLIMITED

    def __str__(self) -> str:
        if self.none:
            return "none"
        unit, size = next((u, s) for u, s in reversed(_UNITS.items()) if self.seconds >= s or u == "s")
        span = self.seconds / size
        text = f"{self.count}/{'' if span == 1 else f'{span:g}'}{unit}"
        return text if self.burst is None else f"{text} burst {self.burst}"


NO_RATE = Rate(UNLIMITED, 1.0)


def parse_rate(value: object, what: str = "rate=") -> Rate:
    """Parse a rate: "100/m", "5/10s", "100/h burst 20", or a Rate; else ConfigurationError."""
    if isinstance(value, Rate):
        return _checked(value, what)
    if isinstance(value, str):
        match = _WRITTEN.fullmatch(value.strip())
        if match is not None:
            seconds, burst = float(match["number"] or 1) * _UNITS[match["unit"]], match["burst"]
            return _checked(Rate(int(match["count"]), seconds, None if burst is None else int(burst)), what)
    raise ConfigurationError(f'{what} takes text such as "100/m", "5/10s" or "100/h burst 20", not {shown(value)}.')


def rate_of(count: int, per: float | timedelta, burst: int | None = None) -> Rate:
    """A rate from numbers, validated."""
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
    """`spent_until`, capped at what this rate could have reached by now.

    It exceeds that after the rate was raised or the clock set back. Without the cap, a former rate of one start an hour
    would block the queue for that hour although ten a second are now allowed. The cap leaves no allowance, never more.
    """
    empty = now + rate.slack + rate.every
    return empty if spent_until > empty + rate.every else spent_until


def allowed(rate: Rate, spent_until: float, now: float) -> int:
    """How many may start now. Differences first: they are exact, while the clock plus a fraction is not."""
    room = rate.slack + ROUNDING - max(spent_until - now, 0.0)
    return 0 if room < 0.0 else math.floor(room / rate.every) + 1


def charged(rate: Rate, spent_until: float, now: float, starts: int) -> float:
    """`spent_until` after `starts` starts in one claim."""
    return max(spent_until, now) + starts * rate.every


def opens_at(rate: Rate, spent_until: float) -> float:
    """When at least one more may start."""
    return spent_until - rate.slack
