"""Notes on dead letters, and statistics of them: the part of `app.dead` that revives and discards nothing.

Inherited by `Dead`; each method has an `a…` twin. A note is kept in the timeline of the letter's job, so it is shown
with that, moves and is pruned with it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .job import DeadLetter, Job
from .names import check_text
from .observer import JobOrId, checked_by, job_id
from .options import queue_name
from .records import NOTE_CHARS_MAX, Mark

if TYPE_CHECKING:
    from .backends.contract import Backend
    from .inspection.dead_stats import DeadStats
    from .operator import Operator


class Note(Struct, frozen=True):
    """A note on a job: who wrote it, and when (seconds since the epoch)."""

    at: float
    by: str
    text: str


class Letters:
    """Notes and statistics of dead letters."""

    _app: Operator

    def note(self, id: JobOrId | DeadLetter, text: str, *, by: str = "") -> Job[Any]:
        """Add a note to the timeline of a letter's job; any other job takes one, too."""
        known, said, who = letter_id(id), _checked_note(text), checked_by(by)
        return self._app._job(self._app._do("dead.note", lambda backend: backend.annotate(known, said, by=who)))

    async def anote(self, id: JobOrId | DeadLetter, text: str, *, by: str = "") -> Job[Any]:
        """Async version of `note`."""
        known, said, who = letter_id(id), _checked_note(text), checked_by(by)
        return self._app._job(await self._app._ado(lambda backend: backend.annotate(known, said, by=who)))

    def notes(self, id: JobOrId | DeadLetter) -> list[Note]:
        """The notes on a letter's job, oldest first."""
        return self._app._do("dead.notes", partial(_notes, letter_id(id)))

    async def anotes(self, id: JobOrId | DeadLetter) -> list[Note]:
        """Async version of `notes`."""
        return await self._app._ado(partial(_notes, letter_id(id)))

    def stats(self, *, queue: str | None = None) -> DeadStats:
        """How many dead letters there are by task, by reason and by the day of their latest death, UTC."""
        return self._app._do("dead.stats", partial(_stats, None if queue is None else queue_name(queue)))

    async def astats(self, *, queue: str | None = None) -> DeadStats:
        """Async version of `stats`."""
        return await self._app._ado(partial(_stats, None if queue is None else queue_name(queue)))


def letter_id(letter: JobOrId | DeadLetter) -> str:
    return letter.id if isinstance(letter, DeadLetter) else job_id(letter)


def _checked_note(text: str) -> str:
    return check_text(text, "text")[:NOTE_CHARS_MAX]


def notes_of(marks: list[Mark]) -> list[Note]:
    """The notes among a job's marks."""
    return [Note(mark.at, mark.by, mark.text) for mark in marks if mark.kind == "note"]


async def _notes(id: str, backend: Backend) -> list[Note]:
    return notes_of(await backend.marks(id))


async def _stats(queue: str | None, backend: Backend) -> DeadStats:
    from .inspection.dead_stats import dead_stats

    return await dead_stats(backend, queue)
