"""What bounds an entry's ticks: its first and last moment, an offset, excluded days, times that a function chose.

Called by entry.py, which makes the ticks of an expression or interval. Pure, except that `times_of` calls the user's
function: only where the code declares its entries, never in the keeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from ..errors import ConfigurationError
from ..names import shown

NextAfter = Callable[[datetime], datetime | None]  # the first tick after a moment; None if there are no more
Skip = str | date | Iterable[str | date]

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
SKIPPED_DAYS_MAX = 1000  # excluded dates of one entry
SKIPS_IN_A_ROW_MAX = SKIPPED_DAYS_MAX + 3000  # excluded ticks in a row: then every tick is taken to be excluded
TIMES_KEPT_MAX = 500  # ticks that a function chose and the store keeps ahead
TIMES_LEFT_MIN = 400  # with fewer left, the next job of the entry stores more


def check_skip(given: object) -> tuple[str, ...]:
    """Excluded weekdays and dates as they are stored: MON … SUN, then ISO dates, each once and in order."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        given = (given,)
    found = {_skipped_day(one) for one in given}
    dates = sorted(found - set(WEEKDAYS))
    if len(dates) > SKIPPED_DAYS_MAX:
        raise ConfigurationError(f"skip= takes at most {SKIPPED_DAYS_MAX} dates, not {len(dates)}.")
    days = tuple(day for day in WEEKDAYS if day in found)
    if len(days) == len(WEEKDAYS):
        raise ConfigurationError("skip= names every day of the week: the entry would never tick.")
    return days + tuple(dates)


def _skipped_day(one: object) -> str:
    if isinstance(one, date) and not isinstance(one, datetime):
        return one.isoformat()
    if isinstance(one, str):
        if one.strip().upper() in WEEKDAYS:
            return one.strip().upper()
        try:
            return date.fromisoformat(one.strip()).isoformat()
        except ValueError:
            pass
    raise ConfigurationError(f'skip= takes days such as "SAT", "2030-12-25" or date(2030, 12, 25), not {shown(one)}.')


def check_moment(value: object, what: str) -> float:
    """A moment as stored; ConfigurationError unless it is an aware datetime."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigurationError(f"{what} takes an aware datetime, such as datetime(2030, 1, 1, tzinfo=UTC).")
    return value.timestamp()


def without(
    skip: tuple[str, ...], zone: tzinfo, ticks: Callable[[float], Iterator[float]], after: float
) -> Iterator[float]:
    """The ticks after a moment that fall on no excluded day. `ticks` makes those after any moment.

    An excluded day is left at once, however many ticks it has. The iteration ends after SKIPS_IN_A_ROW_MAX such days in
    a row, so days that exclude every tick do not keep it searching for ever.
    """
    excluded, in_a_row = frozenset(skip), 0
    while in_a_row < SKIPS_IN_A_ROW_MAX:
        for at in ticks(after):
            day = datetime.fromtimestamp(at, zone).date()
            if day.isoformat() in excluded or WEEKDAYS[day.weekday()] in excluded:
                in_a_row += 1
                after = _end_of(day, zone, at)
                break
            in_a_row, after = 0, at
            yield at
        else:
            return


def _end_of(day: date, zone: tzinfo, at: float) -> float:
    """The last moment before the next day begins; never before `at`."""
    midnight = datetime.combine(day + timedelta(days=1), datetime.min.time(), zone)
    return max(at, midnight.timestamp() - 0.001)


def times_of(next_after: NextAfter, now: float) -> tuple[float, ...]:
    """The next ticks that a function chooses, as the entry stores them; ConfigurationError if it does not advance."""
    at, found = now, list[float]()
    while len(found) < TIMES_KEPT_MAX:
        chosen = next_after(datetime.fromtimestamp(at, UTC))
        if chosen is None:
            break
        moment = check_moment(chosen, f"next_after={name_of(next_after)}: its result")
        if moment <= at:
            raise ConfigurationError(
                f"next_after={name_of(next_after)} gets a moment and returns the first tick after it, or None. "
                f"For {datetime.fromtimestamp(at, UTC).isoformat()} it returned {chosen.isoformat()}."
            )
        at = moment
        found.append(at)
    return tuple(found)


def name_of(next_after: NextAfter) -> str:
    return getattr(next_after, "__qualname__", type(next_after).__qualname__)
