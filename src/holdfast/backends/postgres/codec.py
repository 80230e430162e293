"""Encodes what the server's functions take as JSON, and decodes what they return, invalid rows as far as possible.

Called by every module that sends or reads something. Pure.
"""

from __future__ import annotations

import math
import re
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec.structs import replace

from ...codec import decoder
from ...dependencies import DUE_AFTER_PARENTS
from ...lifecycle import SUCCEEDED, Settlement, State
from ...rates import Rate
from ...records import (
    Answer,
    Command,
    CronEntry,
    DeadLetter,
    Edit,
    Enqueued,
    Exchanged,
    Flow,
    JobRecord,
    Lease,
    Mark,
    NewJob,
    Override,
    Promoted,
    QueueRule,
    Recovered,
    Renewal,
    Seal,
    TaskRule,
    Ticked,
    WorkerRecord,
)

# ----------------------------------------------------------------------------------------------------------------------
# Tolerant decoding: an invalid field hides neither the rest of its row nor other rows. Decodes a record as a whole;
# only if that fails, which is rare, field by field.


Record = TypeVar("Record", bound=msgspec.Struct)
_plain = msgspec.json.Decoder(strict=False).decode
WHOLE = "record"  # the field name under which an entirely unreadable record is reported

# Placeholders for required fields that cannot be read. A job in an unknown state is shown as dead: it never runs.
_INSTEAD: Mapping[type[msgspec.Struct], Mapping[str, Any]] = {
    JobRecord: {"id": "", "seq": 0, "task": "", "queue": "", "state": State.DEAD, "args": b""},
    DeadLetter: {
        "id": "",
        "task": "",
        "queue": "",
        "key": None,
        "group": None,
        "args": b"",
        "failure_count": 0,
        "first_failed_at": 0.0,
        "failed_at": 0.0,
        "reason": "unreadable",
    },
    WorkerRecord: {"id": ""},
    QueueRule: {"name": ""},
    TaskRule: {"name": ""},
    Override: {},
    Flow: {},
}


def _name_in(text: str, instead: Mapping[str, Any]) -> dict[str, str]:
    """The id or name of a record that cannot be decoded."""
    key = next((name for name in ("id", "name") if name in instead), None)
    found = None if key is None else re.search(rf'"{key}" ?: ?("(?:[^"\\]|\\.)*")', text)
    return {} if key is None or found is None else {key: msgspec.json.decode(found[1], type=str)}


def makes_sense(rate: object) -> bool:
    """Whether a rate is usable, by the same rule as rates.sql. Any value that is not a Rate passes."""
    if not isinstance(rate, Rate):
        return True
    return rate.count > 0 and 0 < rate.seconds < math.inf and (rate.burst is None or rate.burst > 0)


def reader(kind: type[Record]) -> Callable[[str], tuple[Record, tuple[str, ...]]]:
    """A decoder for this kind of record that also returns the names of the fields it could not read."""
    whole, hints, instead = decoder(kind), cache(lambda: get_type_hints(kind)), _INSTEAD[kind]
    rates = [name for name in ("rate", "group_rate") if name in kind.__struct_fields__]

    def read(text: str) -> tuple[Record, tuple[str, ...]]:
        try:
            record = whole(text)
            if all(makes_sense(getattr(record, name)) for name in rates):
                return record, ()
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            stored: dict[str, Any] = _plain(text)
        except RecursionError:  # nested too deep: nothing but its name can be told
            return kind(**{**instead, **_name_in(text, instead)}), (WHOLE,)
        values: dict[str, Any] = {}
        unreadable = []
        for field in msgspec.structs.fields(kind):
            if field.encode_name not in stored:
                continue
            try:
                value = msgspec.convert(stored[field.encode_name], hints()[field.name])
            except (msgspec.ValidationError, RecursionError):
                unreadable.append(field.name)
                continue
            if field.name in rates and not makes_sense(value):
                unreadable.append(field.name)
            else:
                values[field.name] = value
        return kind(**{**instead, **values}), tuple(unreadable)

    return read


_read_entry = decoder(CronEntry)
_read_job = reader(JobRecord)
read_letter = reader(DeadLetter)
read_worker = reader(WorkerRecord)
read_queue = reader(QueueRule)
read_task = reader(TaskRule)
read_override = reader(Override)
read_flow = reader(Flow)
_read_marks = decoder(tuple[Mark, ...])
_read_rate = decoder(Rate)


def as_job(text: str) -> JobRecord:
    job, unreadable = _read_job(text)
    return msgspec.structs.replace(job, unreadable=unreadable) if unreadable else job


def as_marks(text: str | None) -> tuple[Mark, ...]:
    """A job's marks; none if they cannot be read."""
    try:
        return () if text is None else _read_marks(text)
    except (msgspec.DecodeError, RecursionError):
        return ()


def edit_document(edit: Edit) -> str:
    """The changes of an edit as JSON: only values that are set, without the arguments."""
    return msgspec.json.encode(msgspec.structs.replace(edit, args=msgspec.UNSET)).decode()


def as_letter(text: str) -> DeadLetter:
    return read_letter(text)[0]


def as_worker(text: str) -> WorkerRecord:
    return read_worker(text)[0]


def rate_or_none(text: str | None) -> Rate | None:
    """The rate; None if it is missing, unreadable or unusable."""
    try:
        rate = None if text is None else _read_rate(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return rate if makes_sense(rate) else None


def entry_or_none(text: str) -> CronEntry | None:
    """The cron entry; None if it cannot be read: without all its fields, it has no due time."""
    try:
        return _read_entry(text)
    except (msgspec.DecodeError, RecursionError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# What the statements return


_TOKEN: Final = 1  # place of the token in LeaseTexts
_ARGS_SIZE: Final = 5  # place of the length of the arguments in LeaseTexts
LeaseTexts = tuple[
    str,
    str,
    int,
    str,
    str,
    int,
    int,
    str | None,
    str | None,
    int,
    int,
    int,
    int,
    float,
    float,
    str | None,
    bool,
    int,
    float,
]


as_answers = decoder(list[Answer])
as_promoted = decoder(Promoted)
as_recovered = decoder(list[Recovered])
as_refilled = decoder(tuple[int, str, str])
as_command = decoder(Command)
as_renewal = decoder(Renewal)


class _StoredJob(msgspec.Struct, frozen=True, array_like=True):
    """The result for one new job, as the function `enqueue` returns it."""

    id: str
    created: bool
    replaced: bool
    waits: bool = False


Stored = bool | list[_StoredJob]  # true: all of them are new


class Answered(msgspec.Struct, frozen=True):
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
    chained: int = 0  # how many of the leases, the last ones, are chained


class _Ticked(msgspec.Struct, frozen=True):
    done: bool
    entry: CronEntry | None = None
    enqueued: Stored = []
    skipped: bool = False


read_exchanged = decoder(Answered, strict=False)
_read_enqueued: Callable[[Any], Stored] = decoder(Stored)  # type: ignore[arg-type]  # a union
_read_ticked = decoder(_Ticked)


class Told(NamedTuple):
    """The result of an exchange, the queues to wake, and the floors to remember (snapshots.py)."""

    exchanged: Exchanged
    stirred: list[str]
    floors: dict[str, Any] | None


def seqs_without_bodies(answered: Answered, bodies: bytes) -> list[int]:
    """The jobs whose arguments are too large for the result of an exchange."""
    rows = answered.leases
    if bodies or not rows:
        return []
    return [int(row[_TOKEN].partition(".")[0]) for row in rows if row[_ARGS_SIZE]]


def as_exchanged(answered: Answered, bodies: bytes | Mapping[int, bytes], places: Sequence[int] | None) -> Told:
    """Decode the result of an exchange.

    `bodies`: the arguments of all leases, concatenated or by seq. `places`: for each of the first answers, the index of
    its settlement in the caller's list.
    """
    sorted_answers = answered.answers
    if places is not None:
        settled = sorted(zip(places, answered.answers[: len(places)], strict=True))
        sorted_answers = (*(answer for _, answer in settled), *answered.answers[len(places) :])
    exchanged = Exchanged(
        answers=sorted_answers,
        leases=as_leases(answered.leases, bodies, answered.chained),
        known=answered.known,
        recovered=answered.recovered,
        sealed=answered.sealed,
        quiet_seconds=answered.quiet_seconds,
        opens_in=answered.opens_in,
    )
    return Told(exchanged, answered.stirred or [], answered.floors)


class SettledWith(msgspec.Struct, frozen=True):
    """The answer of settle_with, and the queues to wake."""

    answer: Answer
    stirred: list[str] = []


as_settled_with = decoder(SettledWith)


def as_enqueued(answer: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
    return _stored(_read_enqueued(answer), jobs)


def as_ticked(answer: str, jobs: Sequence[NewJob]) -> Ticked:
    answered = _read_ticked(answer)
    enqueued = tuple(Enqueued(one.id, one.created, one.replaced) for one in _stored(answered.enqueued, jobs))
    return Ticked(done=answered.done, entry=answered.entry, enqueued=enqueued, skipped=answered.skipped)


def _stored(answered: Stored, jobs: Sequence[NewJob]) -> list[Enqueued]:
    if isinstance(answered, bool):
        return [Enqueued(job.id, True) for job in jobs]
    return [Enqueued(one.id, one.created, one.replaced, one.waits) for one in answered]


# A lease as the function `lease` in statements/claim.sql returns it, all as text and in this order. Instead of the
# arguments it contains their length.


def as_leases(rows: Sequence[LeaseTexts], bodies: bytes | Mapping[int, bytes], chained: int = 0) -> tuple[Lease, ...]:
    """Decode leases. Their arguments are concatenated in `bodies`, or there by seq; a job missing there has been
    deleted since. The last `chained` of them are chained."""
    leases, place = [], 0
    for row in rows:
        size = row[_ARGS_SIZE]
        if isinstance(bodies, bytes):
            args = bodies[place : place + size]
            place += size
        else:
            args = bodies.get(int(row[_TOKEN].partition(".")[0]), b"")
        leases.append(_as_lease(row, args))
    if chained:
        leases[-chained:] = [replace(lease, chained=True) for lease in leases[-chained:]]
    return tuple(leases)


def _as_lease(row: LeaseTexts, args: bytes) -> Lease:
    (id, token, fence, task, queue, _size, priority, group, key, attempt, failures, stalls, max_stalls,
     created_at, started_at, encoded, suspect, shared_stalls, due_at) = row  # fmt: skip
    options = None if encoded is None else a2b_base64(encoded)
    return Lease(
        id, token, fence, task, queue, args, priority, group, key, attempt, failures, stalls, max_stalls,
        created_at, started_at, options, suspect, shared_stalls, due_at,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Encoding: new jobs and settlements, by column.


_encode = msgspec.json.Encoder().encode
# Sent as one object, only if set.
_RARE_FIELDS = ("key_scope", "key_until", "key_window", "wait_max", "on_expire", "order")
SINGLE_FIELDS = (
    "id",
    "task",
    "queue",
    "priority",
    "delay",
    "due_at",
    "expires",
    "max_stalls",
    "args",
    "revival",
    "options",
)
_MAY_SHARE = tuple(
    (name, attrgetter(name)) for name in NewJob.__struct_fields__ if name not in ("id", "args", *_RARE_FIELDS)
)
_single_values = attrgetter(*SINGLE_FIELDS)
_SINGLE_FORMATS = [int(name in ("args", "options")) for name in SINGLE_FIELDS]
_rare_fields = attrgetter(*_RARE_FIELDS)
_NONE_SET = _rare_fields(NewJob(id="", task=""))
_OF_SUCCESS = (("retain", attrgetter("retain")), ("value", attrgetter("value")))
LEASED_GROUPS_MAX = 20_000
_OURS = re.compile(r"[0-9]{1,18}\.[0-9a-f]+\.[0-9a-f]+g?\Z")  # a token in the format of claim.sql
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def encoded(value: Any) -> str:
    """Encode as JSON text. PostgreSQL text cannot contain NUL, so it becomes the replacement character U+FFFD."""
    content = _encode(value)
    if b"\\u0000" in content:
        content = _NUL.sub(rb"\1\\ufffd", content)
    return content.decode()


def by_column(jobs: Sequence[NewJob]) -> str:
    """New jobs by column, as enqueue.sql expects them: a shared value once, differing values as a list."""
    columns: dict[str, Any] = {"same": {}, "id": [job.id for job in jobs], "args": [job.args for job in jobs]}
    for name, read in _MAY_SHARE:
        values = list(map(read, jobs))
        if values.count(values[0]) == len(values):
            columns["same"][name] = values[0]
        else:
            columns[name] = values
    rare = list(map(_rare_fields, jobs))
    if rare.count(rare[0]) < len(rare):
        columns["more"] = list(map(_rare_values, rare))
    elif rare[0] != _NONE_SET:
        columns["same"]["more"] = _rare_values(rare[0])
    return encoded(columns)


def links_of(jobs: Sequence[NewJob]) -> tuple[list[NewJob], str]:
    """The jobs as they are stored while they wait, and their dependencies as dependencies.sql takes them."""
    links = [
        {
            "n": place,
            "id": job.id,
            "after": list(dict.fromkeys(job.after)),
            "on_parent_failure": job.on_parent_failure,
            "delay": job.delay,
            "due_at": job.due_at,
            "before": job.before,
        }
        for place, job in enumerate(jobs)
        if job.after or job.before
    ]
    stored = [replace(job, delay=None, due_at=DUE_AFTER_PARENTS) if job.after else job for job in jobs]
    return stored, encoded(links)


def is_single(jobs: Sequence[NewJob]) -> bool:
    """Whether this is one job for the fast path in enqueue.sql: no group, no key, no rare options."""
    if len(jobs) != 1:
        return False
    [job] = jobs
    return job.group is None and job.key is None and not (job.after or job.before) and _rare_fields(job) == _NONE_SET


def by_field(job: NewJob) -> dict[str, Any]:
    """One job as parameters of the fast path in enqueue.sql."""
    fields = {name: getattr(job, name) for name in SINGLE_FIELDS}
    return fields if job.revival is None else {**fields, "revival": encoded(job.revival)}


def in_bytes(job: NewJob) -> tuple[list[bytes | None], list[int]]:
    """The same for sending without psycopg's cursor: the values in order, and which of them are binary.

    In one expression, as it runs between two waits for the server: then each function that is entered costs a multiple.
    """
    values = _single_values(job) if job.revival is None else by_field(job).values()
    return [
        value if value is None or isinstance(value, bytes) else str(value).encode() for value in values
    ], _SINGLE_FORMATS


def sent(value: Any) -> bytes | None:
    """A parameter in wire format: bytes as they are, everything else as text."""
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _rare_values(values: tuple[object, ...]) -> dict[str, object]:
    """The rare options that differ from their defaults."""
    rare = zip(_RARE_FIELDS, values, _NONE_SET, strict=True)
    return {name: value for name, value, usual in rare if value != usual}


class Outcomes(msgspec.Struct, frozen=True):
    """Settlements as settle.sql expects them: successes, the common case, by column; the others one by one."""

    successes: str | None
    others: str
    places: list[int] | None  # index of each answer's settlement in the caller's list; None: same order


class LeasedGroups:
    """The groups of jobs that were leased here, by token. An exchange that names the groups of the jobs that end spares
    the server reading each job to find them. Only a hint: the server looks them up if one is missing."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, str]] = {}

    def note(self, leases: Sequence[Lease]) -> None:
        if len(self._places) > LEASED_GROUPS_MAX:  # leases that were lost or released are never taken out
            self._places.clear()
        for lease in leases:
            if lease.group is not None:
                self._places[lease.token] = (lease.queue, lease.group)

    def take(self, tokens: Sequence[str]) -> list[tuple[str, str]] | None:
        """The groups of these jobs, each once; None if one is not known."""
        places = {self._places.pop(token, None) for token in tokens}
        known = [place for place in places if place is not None]
        return known if len(known) == len(places) else None


def outcomes(settlements: Sequence[Settlement], groups: LeasedGroups | None = None) -> Outcomes:
    """A success goes by column if it is its job's first settlement, its job is kept, and its token can be parsed."""
    first: dict[str, int] = {}
    others: list[int] = []
    for place, one in enumerate(settlements):
        if one.ending is SUCCEEDED and one.retain >= 0 and one.id not in first and _OURS.match(one.token):
            first[one.id] = place
        else:
            first.setdefault(one.id, -1)
            others.append(place)
    if not others:
        return Outcomes(_by_column(settlements, groups), "[]", None)
    places = [place for place in first.values() if place >= 0]
    successes = _by_column([settlements[place] for place in places]) if places else None
    return Outcomes(successes, encoded([settlements[place] for place in others]), places + others)


def _by_column(settlements: Sequence[Settlement], groups: LeasedGroups | None = None) -> str:
    tokens = [one.token for one in settlements]
    columns: dict[str, Any] = {"token": tokens, "id": [one.id for one in settlements]}
    for name, read in _OF_SUCCESS:
        values = list(map(read, settlements))
        if values.count(values[0]) == len(values):
            columns[name] = values[0]
        else:
            columns[name + "s"] = values
    grouped = [token for token in tokens if token[-1] == "g"]
    if grouped:
        columns["grouped"] = True
        places = None if groups is None else groups.take(grouped)
        if places is not None:
            columns["queues"], columns["grps"] = zip(*places, strict=True)
    return encoded(columns)
