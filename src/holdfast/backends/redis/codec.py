"""Encodes the contract's records as packed arrays for the wire, and decodes them.

Called by backend.py and read.py. Pure. A job's record is an array in the order of layouts.RECORD, packed in the
server; its body is packed here at enqueue and decoded here at claim: the server passes it through unread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ...dependencies import DUE_AFTER_PARENTS, STATUSES, Edge, Relative
from ...lifecycle import Ending, Failure, Settlement, State
from ...records import (
    Answer,
    ClaimRequest,
    Command,
    DeadLetter,
    Edit,
    Enqueued,
    JobRecord,
    Lease,
    LogLine,
    Mark,
    NewJob,
    Pause,
    Recovered,
    Revival,
    StoredJob,
    WorkerRecord,
)
from ...rollups import KeptEvent, Rollup
from ...steps import NewStep, Step, StepKind
from .. import seals
from .layouts import FIELDS, NEW_JOB, RECORD, REQUEST, TERMS, bad_fields

STATES = {
    "s": State.SCHEDULED,
    "w": State.WAITING,
    "r": State.READY,
    "x": State.RUNNING,
    "o": State.SUCCEEDED,
    "c": State.CANCELLED,
    "d": State.DEAD,
}
LETTERS = {state: letter for letter, state in STATES.items()}
ANSWERS = {ord("o"): Answer.OK, ord("l"): Answer.LOST, ord("c"): Answer.CANCELLED}
_INTO = {
    Ending.SUCCEEDED: "o",
    Ending.RETRY: "s",
    Ending.SNOOZED: "z",  # a snooze leaves a mark
    Ending.BURIED: "d",
    Ending.CANCELLED: "c",
    Ending.STALLED: "t",
}
_RETAIN = 86400.0  # RETAIN_SECONDS of lua/settle.lua
PIECES = 6  # of a whole job: id, record, body, value, errors, progress

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode
_lines = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_marks = msgspec.msgpack.Decoder(list[Mark]).decode
_revival = msgspec.msgpack.Decoder(Revival | None).decode
_NOTHING = pack(None)
_NO_ARGS = b"{}"  # shown if they cannot be read; a lease has none instead, so that its job fails rather than runs
_USUAL = (False, False, False, False, False)  # TERMS without holds_key
_AGED = 4  # flag in a lane: see RECORD
_LENGTHS = struct.Struct(">II")
_TIMES = struct.Struct(">dddd")
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_histories = msgspec.msgpack.Decoder(list[dict[str, msgspec.Raw]]).decode
_failures = msgspec.msgpack.Decoder(tuple[Failure, ...]).decode
_NUMBERS = ("created_at", "due_at", "expires_at", "started_at", "finished_at", "prune_at")
_BESIDE = ("state", "args", "options", "revival", "value", "errors", "progress", "progress_text", "unreadable")
_SHOWN = tuple(name for name in JobRecord.__struct_fields__ if name not in _BESIDE)
_BEYOND = ("token", "turn", "rank", "lane", "claim_call", "prune_at")


def answers(letters: bytes) -> list[Answer]:
    return [ANSWERS[letter] for letter in letters]


# ---------------------------------------------------------------------- going in


WATCHER = b"\2"  # before the name of a shard that watches a job

_new = attrgetter(*NEW_JOB[:-1])
request: Callable[[ClaimRequest], tuple[Any, ...]] = attrgetter(*REQUEST)


def new_job(job: NewJob) -> tuple[Any, ...]:
    return (*_new(job), _terms(job, job.wait_max))


def link(job: NewJob) -> tuple[Any, ...] | bool:
    """Encode the parents of a new job and the job that is to wait for it; False if it has neither."""
    if not (job.after or job.before):
        return False
    return list(dict.fromkeys(job.after)), job.on_parent_failure, job.delay, job.due_at, job.before


def waiting(job: NewJob) -> NewJob:
    """The job as it is stored while it waits for its parents."""
    return replace(job, delay=None, due_at=DUE_AFTER_PARENTS) if job.after else job


def edge(child: bytes, parent: bytes, status: bytes, packed: bytes | None) -> Edge:
    """Decode an edge, with the options of its child."""
    try:
        _, _, policy, delay, due_at = unpack(packed or b"")
    except UNREADABLE:
        policy, delay, due_at = "bury", False, False
    return Edge(
        parent=parent.decode(),
        child=child.decode(),
        status=STATUSES[int(status)],
        on_parent_failure=policy,
        delay=None if delay is False else delay,
        due_at=None if due_at is False else due_at,
    )


def edge_line(edge: Edge) -> tuple[Any, ...]:
    """Encode an edge for a move."""
    wanted = (edge.on_parent_failure, _or_false(edge.delay), _or_false(edge.due_at))
    return (edge.parent, edge.child, str(STATUSES.index(edge.status)), *wanted)


def new_step(step: NewStep) -> tuple[Any, ...]:
    """Encode a NEW_STEP; its value is sent beside it."""
    return (step.kind, step.name, step.number, _or_false(step.delay))


def steps(found: Sequence[Sequence[bytes]]) -> list[Step]:
    """Decode steps from members of `steps` and their values; what is not ours is left out, and flaws lists it."""
    return [_step(member, *packed) for member, *packed in found if member.count(b"\0") >= 2]


def _step(member: bytes, packed: bytes | None = None) -> Step:
    escaped, kind, name = member.split(b"\0", 2)
    try:
        number, value, until, at, fence = unpack(packed or b"")
    except UNREADABLE:
        number, value, until, at, fence = 0, False, False, 0.0, 0
    return Step(
        job_id=escaped.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1").decode(),
        kind=cast(StepKind, kind.decode(errors="replace")),
        name=name.decode(errors="replace"),
        number=number,
        value=None if value is False else value.encode(),  # JSON: always text
        until=None if until is False else float(until),
        at=float(at),
        fence=fence,
    )


def step_line(step: Step) -> tuple[Any, ...]:
    """Encode a step for a move; its value is sent beside it."""
    return (step.job_id, step.kind, step.name, step.number, _or_false(step.until), step.at, step.fence)


def edges(members: Sequence[bytes], dependents: Mapping[bytes, bytes]) -> list[Edge]:
    """Decode all edges, by child and parent, from the members of `edges`."""
    found: list[Edge] = []
    for member in members:
        escaped, _, rest = member.partition(b"\0")
        if rest[:1] not in (b"0", b"1", b"2") or rest[1:2] == WATCHER:
            continue  # a shard that watches the job; or nothing of ours: flaws lists it
        parent = escaped.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
        found.append(edge(rest[1:], parent, rest[:1], dependents.get(rest[1:])))
    return sorted(found, key=lambda one: (one.child, one.parent))


def edge_counts(dependents: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """Decode how many edges of each child are not met, and failed."""
    counts: list[dict[str, Any]] = []
    for child, packed in sorted(dependents.items()):
        try:
            pending, failed, *_ = unpack(packed)
        except UNREADABLE:
            pending = failed = -1
        counts.append({"child": child.decode(), "pending": pending, "failed": failed})
    return counts


def relative(job_id: bytes, task: bytes, state: bytes, status: bytes, value: bytes | None) -> Relative:
    """Decode a parent or a child."""
    known = STATES[state.decode()]
    return Relative(id=job_id.decode(), task=task.decode(), state=known, status=STATUSES[int(status)], value=value)


def _terms(job: NewJob | StoredJob, at_most: float | None) -> tuple[Any, ...] | None:
    """Return TERMS without holds_key, which follows if an order does; None if nothing of it is set."""
    is_global, until_started, drops = job.key_scope == "global", job.key_until == "started", job.on_expire == "drop"
    window = job.key_window
    if window is None and at_most is None and job.order is None and not (is_global or until_started or drops):
        return None
    terms = is_global, until_started, _or_false(window), _or_false(at_most), drops
    return terms if job.order is None else (*terms, False, job.order)


def _or_false(value: float | None) -> float | bool:
    return False if value is None else value


def body(job: NewJob | StoredJob) -> bytes:
    """Pack the lengths of arguments and options (0: none), arguments, options and the packed revival policy."""
    options = b"" if job.options is None else job.options
    revival = _NOTHING if job.revival is None else pack(job.revival)
    return b"".join((_LENGTHS.pack(len(job.args), len(options)), job.args, options, revival))


def opened(body: bytes) -> tuple[bytes, bytes | None, bytes]:
    """Return (arguments, options, packed revival). A truncated body has none of them."""
    if len(body) <= _LENGTHS.size:
        return b"", None, b""
    length, more = _LENGTHS.unpack_from(body)
    middle = 8 + length
    return body[8:middle], body[middle : middle + more] if more else None, body[middle + more :]


def options_in(body: bytes | None) -> bytes | None:
    """The options in a job's body; None if there are none."""
    return opened(body or b"")[1]


def changes(edit: Edit) -> list[Any]:
    """Encode the changes of an edit, except the arguments: nil for what stays, false for no group or order."""
    values = (edit.queue, edit.group, edit.priority, edit.order, edit.due_at, edit.delay)
    return [edit.revive, *(None if value is UNSET else False if value is None else value for value in values)]


def settlement(one: Settlement, values: list[bytes]) -> tuple[Any, ...]:
    """Encode a SETTLEMENT; a value other than null goes into `values`, its ARGV position into the settlement."""
    if one.value == b"null" and one.ending is Ending.SUCCEEDED and one.retain == _RETAIN and one.failure is None:
        return one.id, one.token
    value: bool | int | None = None
    if one.value is not None:
        value = one.value == b"null"
        if not value:
            values.append(one.value)
            value = len(values) + 1
    return (
        one.id,
        one.token,
        _INTO[one.ending],
        one.failed,
        one.delay,
        value,
        one.failure,
        one.reason,
        one.retain,
        *((one.alone,) if one.ending is Ending.STALLED else ()),
    )


def record(job: StoredJob) -> list[Any]:
    """Encode a job of another store as a record here; it is never leased."""
    value: bool | int = job.value == b"null"
    if job.value is not None and not value:
        value = 1
    terms = _terms(job, job.due_max)
    derived = {
        "state": LETTERS[job.state],
        "token": False,
        "worker": False,
        "claim_call": False,
        "value": value,
        "terms": job.holds_key if terms is None else (*terms[:5], job.holds_key, *terms[6:]),
        "lane": job.lane + _AGED * (job.state is State.READY and job.rank != job.priority),
    }
    values = (derived[name] if name in derived else getattr(job, name) for name in FIELDS)
    return [False if value is None else value for value in values]


def pieces(job: StoredJob) -> list[bytes]:
    """Return what is kept beside a job's record, packed; empty for what it lacks."""
    value = b"" if job.value in (None, b"null") else job.value or b""
    errors = pack(job.errors) if job.errors else b""
    shown = (job.progress is not None and job.progress, job.progress_text is not None and job.progress_text)
    progress = b"" if shown == (False, False) else pack(shown)
    lines = pack([(line.at, line.text) for line in job.logs]) if job.logs else b""
    return [body(job), value, errors, progress, lines, pack(job.marks) if job.marks else b""]


def named(record: msgspec.Struct) -> dict[str, Any]:
    """Return the fields by name, without those that are None."""
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value is not None}


def letter_line(letter: DeadLetter) -> dict[str, Any]:
    """Encode a letter as it is stored: see `letter`."""
    history = [_with_text(named(past)) for past in letter.history]
    return {**_with_text(named(replace(letter, options=None))), "history": history}


def _with_text(values: dict[str, Any]) -> dict[str, Any]:
    """Mark arguments as text, as the server marks whatever it packs."""
    if "args" in values:
        args: bytes = values["args"]
        values["args"] = msgspec.Raw(b"\xdb" + len(args).to_bytes(4, "big") + args)
    return values


# ---------------------------------------------------------------------- coming out


def enqueued(jobs: Sequence[NewJob], letters: bytes, others: Sequence[Any]) -> list[Enqueued]:
    """Decode the results for new jobs: c created, w created and waiting, r replaced, else kept; and the ids that
    replace those given."""
    found = [(job.id, chr(letter)) for job, letter in zip(jobs, letters, strict=True)]
    answered = [Enqueued(id, letter in "cw", letter == "r", letter == "w") for id, letter in found]
    for place, live_id in zip(others[::2], others[1::2], strict=True):
        answered[place - 1] = Enqueued(live_id.decode(), False, answered[place - 1].replaced)
    return answered


def leases(pieces: Sequence[bytes | None], chained: int = 0) -> tuple[Lease, ...]:
    """Decode leases; the last `chained` of them are chained."""
    records, bodies = pieces[::2], pieces[1::2]
    try:
        rows: list[Sequence[Any]] = [unpack(record or b"") for record in records]
    except UNREADABLE:  # a text that is not UTF-8: the server does not check for that
        rows = [values_of(record or b"")[0] for record in records]
    found = [_lease(row, body) for row, body in zip(rows, bodies, strict=True)]
    if chained:
        found[-chained:] = [replace(lease, chained=True) for lease in found[-chained:]]
    return tuple(found)


_LEASED = (
    *("id", "token", "fence", "task", "queue", "priority", "group", "key", "attempts", "failures", "stalls"),
    *("max_stalls", "created_at", "started_at", "suspect", "shared_stalls", "due_at"),
)
_leased = itemgetter(*map(FIELDS.index, _LEASED))


def _lease(row: Sequence[Any], body: bytes | None) -> Lease:
    args, options, _ = opened(body or b"")
    job_id, token, fence, task, queue, priority, group, key, attempts, failures, stalls, *others = _leased(row)
    max_stalls, created_at, started_at, suspect, shared_stalls, due_at = others
    return Lease(
        job_id,
        token,
        fence,
        task,
        queue,
        args,
        priority,
        None if group is False else group,  # not _or_none: this runs for every job
        None if key is False else key,
        attempts + 1,
        failures,
        stalls,
        max_stalls,
        float(created_at),
        float(started_at),
        options,
        suspect,
        shared_stalls,
        float(due_at),
    )


def _or_none(value: Any) -> Any:
    return None if value is False else value


def _record(job_id: bytes | None, packed: bytes | None) -> dict[str, Any]:
    """Decode a record by names, None for false, times as floats; `unreadable` names fields that got their default."""
    values, unreadable = fields((job_id or b"").decode(errors="replace"), packed or b"")
    values["unreadable"] = tuple(unreadable)
    for name in ("group", "key", "turn", "token", "worker", "claim_call", "reason", *_NUMBERS):
        values[name] = _or_none(values[name])
    for name in _NUMBERS:
        if values[name] is not None:
            values[name] = float(values[name])
    values["state"] = STATES[values["state"]]
    lane, stored = values["lane"], values["terms"]
    values["lane"], aged = lane % 4, lane & _AGED
    values["rank"] = values["priority"] if values["state"] is State.READY and not aged else 0
    stored = [*_USUAL, stored] if stored in (True, False) else stored
    terms = dict(zip(TERMS, stored, strict=False))
    values["order"] = _or_none(terms.get("order", False))
    values["holds_key"] = terms["holds_key"]
    values["key_scope"] = "global" if terms["global"] else "queue"
    values["key_until"] = "started" if terms["until_started"] else "finished"
    values["key_window"], values["due_max"] = _float_or_none(terms["window"]), _float_or_none(terms["due_max"])
    values["on_expire"] = "drop" if terms["drops"] else "bury"
    return values


def _float_or_none(value: Any) -> float | None:
    return None if value is False else float(value)


def _job(values: dict[str, Any], pieces: Sequence[bytes | None]) -> JobRecord:
    body, value, errors, progress = pieces
    unreadable = list(values["unreadable"])

    def read(name: str, piece: bytes | None, decode: Callable[[bytes], Any], default: Any) -> Any:
        try:
            return decode(piece) if piece else default
        except UNREADABLE:
            unreadable.append(name)
            return default

    args, options, revival = opened(body or b"")
    if body is None or len(body) <= _LENGTHS.size:
        args = _NO_ARGS
        unreadable.append("args")
    if values["value"] is True:
        value = b"null"
    elif values["value"] is False:
        value = None
    elif value is None:
        unreadable.append("value")
    fraction, text = read("progress", progress, _progress, (None, None))
    shown = JobRecord(
        **{name: values[name] for name in _SHOWN},
        state=values["state"],
        args=args,
        options=options,
        revival=read("revival", revival, _revival, None),
        value=value,
        errors=read("errors", errors, _failures, ()),
        progress=fraction,
        progress_text=text,
    )
    return msgspec.structs.replace(shown, unreadable=tuple(unreadable)) if unreadable else shown


def _progress(packed: bytes) -> tuple[float | None, str | None]:
    fraction, text = unpack(packed)
    return None if fraction is None or fraction is False else float(fraction), _or_none(text)


def jobs(pieces: Sequence[bytes | None]) -> list[JobRecord]:
    """Decode whole jobs from their pieces, PIECES each."""
    return [
        _job(_record(pieces[at], pieces[at + 1]), pieces[at + 2 : at + PIECES]) for at in range(0, len(pieces), PIECES)
    ]


def light_jobs(pieces: Sequence[bytes | None]) -> list[JobRecord]:
    """Decode jobs from their ids and records alone: without arguments, value, errors and progress."""
    found = []
    for job_id, packed in zip(pieces[::2], pieces[1::2], strict=True):
        values = _record(job_id, packed)
        shown = {name: values[name] for name in _SHOWN}
        found.append(JobRecord(**shown, state=values["state"], args=_NO_ARGS, unreadable=values["unreadable"]))
    return found


def job_line(pieces: Sequence[bytes | None]) -> dict[str, Any]:
    """Decode a whole job as the dump shows it."""
    values = _record(*pieces[:2])
    line = plain(_job(values, pieces[2:])) | {name: values[name] for name in _BEYOND}
    del line["unreadable"]
    return line


def stored_jobs(
    pieces: Sequence[bytes | None], lines: Sequence[bytes | None], marked: Sequence[bytes | None]
) -> list[StoredJob]:
    """Decode whole jobs for a move. Raises an error that names an unreadable one: garbage is not carried over."""
    found: list[StoredJob] = []
    for place, (packed, marked_so) in enumerate(zip(lines, marked, strict=True)):
        job_id, record, *others = pieces[PIECES * place : PIECES * (place + 1)]
        values = _record(job_id, record)
        job = _job(values, others)
        if job.unreadable:
            raise seals.unreadable("job", job.id, job.unreadable)
        beyond = {name: values[name] for name in ("turn", "rank", "lane", "prune_at")}
        logs, kept = tuple(log_lines(packed)), tuple(marks(marked_so))
        found.append(StoredJob(**msgspec.structs.asdict(job), **beyond, logs=logs, marks=kept))
    return found


def plain(record: msgspec.Struct) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return made


def letter(packed: bytes) -> DeadLetter:
    """Decode a letter; the server marks its arguments as text, but they may be any bytes, so they are taken out raw."""
    fields = _fields(packed)
    history = [_letter_values(past) for past in _histories(fields.pop("history"))]
    return msgspec.convert({"key": None, "group": None, **_letter_values(fields), "history": history}, DeadLetter)


def letter_of(logical: bytes, packed: bytes) -> DeadLetter:
    """Decode the letter of a logical job; if it cannot be read, return what the name of the logical job contains."""
    try:
        return letter(packed)
    except UNREADABLE:
        parts = [_unescaped(part) for part in logical[1:].split(b"\0", 2)]
    queue, task, key = parts if logical[:1] == b"k" and len(parts) == 3 else ("", "", None)
    nothing = {"args": _NO_ARGS, "failure_count": 0, "first_failed_at": 0.0, "failed_at": 0.0, "reason": "unreadable"}
    job_id = "" if key is not None else parts[0]
    return msgspec.convert(
        {"id": job_id, "task": task, "queue": queue, "key": key, "group": None, **nothing}, DeadLetter
    )


def _letter_values(fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: text_in(bytes(raw)) if name == "args" else unpack(raw) for name, raw in fields.items()}


def log_lines(packed: bytes | None) -> list[LogLine]:
    """Decode log lines; none if they cannot be read, which flaws() reports."""
    try:
        return [LogLine(float(at), text) for at, text in unpack(packed)] if packed else []
    except UNREADABLE:
        return []


def commands(packed: bytes | None) -> list[Command]:
    """Decode the commands to a worker; unreadable ones are left out."""
    try:
        return [] if packed is None else [command(one) for one in unpack(packed)]
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        return []


def command(stored: Mapping[str, Any]) -> Command:
    """A command as its script keeps it: its JSON, the times, and the answer's JSON."""
    answer = msgspec.json.decode(stored["answer"]) if "answer" in stored else {}
    read = msgspec.json.decode(stored["record"], type=Command)
    return msgspec.structs.replace(read, at=float(stored["at"]), done_at=_float_or(stored.get("done_at")), **answer)


def _float_or(value: Any) -> float | None:
    return None if value is None else float(value)


def marks(packed: bytes | None) -> list[Mark]:
    """Decode the stored part of a job's timeline; empty if it cannot be read, which flaws() reports."""
    try:
        return [] if packed is None else _marks(packed)
    except UNREADABLE:
        return []


def rollup(name: bytes, packed: bytes) -> Rollup | None:
    """Decode a roll-up; None if it cannot be read."""
    try:
        at, *names = name[1:].split(b"\0")[:5]
        queue, task, worker, outcome = map(_unescaped, names)
        count, waits, runs = unpack(packed)
        return Rollup(
            at=float(at),
            queue=queue,
            task=task,
            worker=worker,
            outcome=outcome,
            count=count,
            waits=tuple(waits),
            runs=tuple(runs),
        )
    except UNREADABLE:
        return None


def kept_events(rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> tuple[KeptEvent, ...]:
    """Decode entries of the stream of events."""
    found = ((int(id.partition(b"-")[0]), dict(zip(flat[::2], flat[1::2], strict=True))) for id, flat in rows)
    return tuple(
        KeptEvent(position=position, at=float(one[b"at"]), name=one[b"name"].decode(), body=one[b"body"])
        for position, one in found
    )


def recovered(packed: bytes) -> tuple[Recovered, ...]:
    try:
        lines = unpack(packed)
    except UNREADABLE:
        lines = [values_of(bytes(line))[0] for line in _lines(packed)]
    named = (dict(zip(Recovered.__struct_fields__, line, strict=True)) for line in lines)
    return tuple(Recovered(**one | {"group": _or_none(one["group"]), "state": STATES[one["state"]]}) for one in named)


def worker_facts(worker: WorkerRecord) -> bytes:
    """Encode what a worker reports about itself; the store keeps it as it is."""
    return pack(
        msgspec.structs.replace(worker, started_at=0.0, renewed_at=0.0, expired=False, running=0, portrait=None)
    )


def worker(name: bytes, packed: bytes, portrait: bytes | None) -> tuple[WorkerRecord, float]:
    """Return (record, deadline); if the row cannot be read, the name alone and a deadline in the past."""
    try:
        _, started_at, renewed_at, deadline = _TIMES.unpack_from(packed)
        record = msgspec.msgpack.decode(packed[_TIMES.size :], type=WorkerRecord)
    except UNREADABLE:
        return WorkerRecord(id=name.decode(errors="replace"), portrait=portrait), 0.0
    return msgspec.structs.replace(record, started_at=started_at, renewed_at=renewed_at, portrait=portrait), deadline


def pause(packed: bytes) -> Pause:
    return msgspec.msgpack.decode(packed, type=Pause)


# ---------------------------------------------------------------------- names inside index members


def escaped(name: str) -> bytes:
    """Escape a name as lua/prelude.lua does, with the zero byte that ends a part."""
    return name.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0"


def names_in(place: bytes) -> tuple[str, str]:
    """Return (queue, group) of a place."""
    queue, group = place[:-1].split(b"\0")
    return _unescaped(queue), _unescaped(group)


def _unescaped(part: bytes) -> str:
    return part.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1").decode(errors="replace")


# ----------------------------------------------------------------------------------------------------------------------
# Decodes damaged records as far as possible: a bad field hides neither the other fields nor the other records.
# For everything that is shown, and for leases with a text that is not UTF-8.


# What a decoder may raise for bytes that we did not write.
UNREADABLE: tuple[type[Exception], ...] = (
    msgspec.MsgspecError,
    struct.error,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
)
WHOLE = "record"  # the field name under which an entirely unreadable record is reported

_unpack = msgspec.msgpack.Decoder().decode
_pieces = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_HEAD_BYTES = {0xD9: 2, 0xDA: 3, 0xDB: 5}  # header of a packed text; 1 for a short one
# A record that cannot be read is shown as dead: no worker will run it.
_DEFAULTS = {name: kind.default for name, kind in RECORD.items()} | {"max_stalls": 3}
Read = TypeVar("Read")


def values_of(packed: bytes) -> tuple[list[Any], set[int]]:
    """Return (an unpacked list, the positions of texts that are not UTF-8, decoded with replacement characters)."""
    try:
        return list(_unpack(packed)), set()
    except UNREADABLE:
        pieces = _pieces(packed)
    values: list[Any] = []
    garbled: set[int] = set()
    for place, piece in enumerate(map(bytes, pieces)):
        try:
            values.append(_unpack(piece))
        except UNREADABLE:
            values.append(text_in(piece).decode(errors="replace"))
            garbled.add(place)
    return values, garbled


def text_in(piece: bytes) -> bytes:
    """Return the bytes of a packed text, without the one to five that encode its length."""
    return piece[_HEAD_BYTES.get(piece[0], 1) :]


def fields(job_id: str, packed: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return (a record's values by name, the fields that cannot be read, which have their defaults)."""
    try:
        found, garbled = values_of(packed)
    except UNREADABLE:
        found, garbled = [], set()
    if len(found) != len(FIELDS) or found[0] != job_id:
        return {**_DEFAULTS, "id": job_id}, [WHOLE]
    values = dict(zip(FIELDS, found, strict=True))
    bad = bad_fields(values)
    defaults = {name: _DEFAULTS[name] for name in bad}
    return values | defaults, [name for name in FIELDS if name in bad or FIELDS.index(name) in garbled]


def readable(reads: Iterable[Callable[[], Read]]) -> list[Read]:
    """Return the results of those that can be read."""
    found: list[Read] = []
    for read in reads:
        try:
            found.append(read())
        except UNREADABLE:
            continue
    return found
