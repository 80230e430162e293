"""Decodes the JSON that the server's functions return into records.

Called by backend.py. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ...records import Answer, CronEntry, Enqueued, Exchanged, NewJob, Promoted, Recovered, Renewal, Seal, Ticked
from .read import LeaseTexts, as_leases

as_answers = msgspec.json.Decoder(list[Answer]).decode
as_promoted = msgspec.json.Decoder(Promoted).decode
as_recovered = msgspec.json.Decoder(list[Recovered]).decode
as_refilled = msgspec.json.Decoder(tuple[int, str, str]).decode
as_renewal = msgspec.json.Decoder(Renewal).decode

Stored = bool | list[tuple[str, bool, bool]]  # true: all of them are new


class _Exchanged(msgspec.Struct, frozen=True):
    """As the server returns it. Leases are lists of texts, the fastest to build in SQL; hence the lenient decoder."""

    answers: tuple[Answer, ...] = ()
    leases: list[LeaseTexts] = []
    known: bool = True
    recovered: tuple[Recovered, ...] = ()
    sealed: Seal | None = None
    quiet_seconds: float = 0.0
    opens_in: float | None = None
    stirred: list[str] | None = None  # queues in which a freed place lets a job start
    floors: dict[str, Any] | None = None  # only if the request contained floors


class _Ticked(msgspec.Struct, frozen=True):
    done: bool
    entry: CronEntry | None = None
    enqueued: Stored = []
    skipped: bool = False


_read_exchanged = msgspec.json.Decoder(_Exchanged, strict=False).decode
_read_enqueued = msgspec.json.Decoder(Stored).decode
_read_ticked = msgspec.json.Decoder(_Ticked).decode


class Told(NamedTuple):
    """The result of an exchange, the queues to wake, and the floors that floors.py remembers."""

    exchanged: Exchanged
    stirred: list[str]
    floors: dict[str, Any] | None


def as_exchanged(answer: str, bodies: bytes, places: Sequence[int] | None) -> Told:
    """Decode the result of an exchange.

    `bodies`: the arguments of all leases, concatenated. `places`: for each of the first answers, the index of its
    settlement in the caller's list.
    """
    told = _read_exchanged(answer)
    sorted_answers = told.answers
    if places is not None:
        settled = sorted(zip(places, told.answers[: len(places)], strict=True))
        sorted_answers = (*(answer for _, answer in settled), *told.answers[len(places) :])
    exchanged = Exchanged(
        answers=sorted_answers,
        leases=as_leases(told.leases, bodies),
        known=told.known,
        recovered=told.recovered,
        sealed=told.sealed,
        quiet_seconds=told.quiet_seconds,
        opens_in=told.opens_in,
    )
    return Told(exchanged, told.stirred or [], told.floors)


def as_enqueued(answer: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
    return _stored(_read_enqueued(answer), jobs)


def as_ticked(answer: str, jobs: Sequence[NewJob]) -> Ticked:
    told = _read_ticked(answer)
    enqueued = tuple(_stored(told.enqueued, jobs))
    return Ticked(done=told.done, entry=told.entry, enqueued=enqueued, skipped=told.skipped)


def _stored(told: Stored, jobs: Sequence[NewJob]) -> list[Enqueued]:
    if isinstance(told, bool):
        return [Enqueued(job.id, True) for job in jobs]
    return [Enqueued(*one) for one in told]
