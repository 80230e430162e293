"""Failures grouped by cause: one task, one exception, one line of the user's code; with counts and a trend.

Called by the app, the command line and the dashboard. Reads the newest dead letters, at most LETTERS_READ_MAX, and says
so if there are more; never changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from ..backends.contract import Reader
from ..records import DeadLetter, LetterQuery

LETTERS_READ_MAX = 1000
TREND_HOURS = 24
HOUR = 3600.0
PLACE_LENGTH_MAX = 120
GROWING_LETTERS_MIN = 5  # in the latest hour: below this, an increase may be chance
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>.*)')

Trend = Literal["new", "growing", "steady"]


class FailureKind(Struct, kw_only=True):
    """Dead letters with the same cause: one task, one exception, one line of the user's code."""

    task: str
    name: str  # the exception's class, else the reason
    raised: bool = True  # the name is an exception's
    place: str  # the top frame of the user's own code, else the beginning of the error's text
    letters: int = 0
    deaths: int = 0
    first: float = 0.0
    last: float = 0.0
    hours: list[int]  # letters by the hour of their latest death, oldest first; the last one is the latest hour
    ids: list[str]
    trend: Trend = "steady"  # new: first seen within the hour; growing: over twice its usual rate


class Failures(Struct, kw_only=True):
    """Every kind of failure, the most frequent first."""

    kinds: list[FailureKind]
    letters: int = 0  # dead letters that were read
    capped: bool = False  # there are more: only the newest were read


async def failures(reader: Reader, *, queue: str | None, task: str | None, now: float) -> Failures:
    """The newest dead letters, grouped by cause. `now` is the store's time."""
    found = await reader.letters(LetterQuery(queue=queue, task=task, limit=LETTERS_READ_MAX + 1))
    letters = found[:LETTERS_READ_MAX]
    return Failures(
        kinds=kinds_of(letters, now),
        letters=len(letters),
        capped=len(found) > len(letters),
    )


def kinds_of(letters: Iterable[DeadLetter], now: float) -> list[FailureKind]:
    """Group dead letters by cause, the most frequent first."""
    kinds: dict[tuple[str, str, str], FailureKind] = {}
    for letter in letters:
        error = letter.error
        name = (error.type if error and error.type else letter.reason) or "unknown"
        place = top_frame(error.traceback if error else "") or (error.text if error and not error.type else "")
        place = place[:PLACE_LENGTH_MAX]
        kind = kinds.get((letter.task, name, place))
        if kind is None:
            raised = bool(error and error.type)
            kind = FailureKind(task=letter.task, name=name, raised=raised, place=place, hours=[0] * TREND_HOURS, ids=[])
            kinds[letter.task, name, place] = kind
        _add(kind, letter, now)
    for kind in kinds.values():
        kind.trend = _trend(kind, now)
    return sorted(kinds.values(), key=lambda kind: (-kind.letters, -kind.last))


def _add(kind: FailureKind, letter: DeadLetter, now: float) -> None:
    kind.letters += 1
    kind.deaths += letter.failure_count
    kind.last = max(kind.last, letter.failed_at)
    kind.first = min(kind.first or letter.first_failed_at, letter.first_failed_at)
    kind.ids.append(letter.id)
    hour = int(max(0.0, now - letter.failed_at) // HOUR)
    if hour < TREND_HOURS:
        kind.hours[TREND_HOURS - 1 - hour] += 1


def _trend(kind: FailureKind, now: float) -> Trend:
    if kind.first > now - HOUR:
        return "new"
    latest, usual = kind.hours[-1], sum(kind.hours[:-1]) / (TREND_HOURS - 1)
    return "growing" if latest >= GROWING_LETTERS_MIN and latest > 2 * usual else "steady"


def top_frame(traceback: str) -> str:
    """The innermost line of the user's own code in a traceback, as `file:line in function`."""
    frames = list(_FRAME.finditer(traceback))
    own = [one for one in frames if "site-packages" not in one["file"] and "/lib/python" not in one["file"]]
    chosen = (own or frames)[-1:]
    return "".join(f"{'/'.join(one['file'].split('/')[-2:])}:{one['line']} in {one['name']}" for one in chosen)
