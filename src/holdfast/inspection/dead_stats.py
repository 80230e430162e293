"""Statistics of the dead letters: how many by task, by reason and by day.

Called by the app and the command line. Reads the newest dead letters, at most LETTERS_READ_MAX, and says so if there
are more; never changes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from ..backends.contract import Reader
from ..records import DeadLetter, LetterQuery

LETTERS_READ_MAX = 10_000


class DeadStats(Struct, frozen=True, kw_only=True):
    """Counts of dead letters, the most frequent first; days from the latest back."""

    letters: int = 0
    deaths: int = 0  # a letter counts every death of its logical job
    by_task: dict[str, int]
    by_reason: dict[str, int]
    by_day: dict[str, int]  # ISO date, UTC, of the latest death
    capped: bool = False  # there are more: only the newest were read


async def dead_stats(reader: Reader, queue: str | None) -> DeadStats:
    found = await reader.letters(LetterQuery(queue=queue, limit=LETTERS_READ_MAX + 1))
    letters = found[:LETTERS_READ_MAX]
    days = _counted(datetime.fromtimestamp(letter.failed_at, UTC).date().isoformat() for letter in letters)
    return DeadStats(
        letters=len(letters),
        deaths=sum(letter.failure_count for letter in letters),
        by_task=_counted(letter.task for letter in letters),
        by_reason=_counted(_reason(letter) for letter in letters),
        by_day=dict(sorted(days.items(), reverse=True)),
        capped=len(found) > len(letters),
    )


def _reason(letter: DeadLetter) -> str:
    return letter.reason or "unknown"


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items(), key=lambda one: (-one[1], one[0])))
