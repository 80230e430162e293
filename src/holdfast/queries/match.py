"""What the conditions of a query mean: whether one job meets them. Pure; the only place that decides it.

Called by the backend contract for every job a store hands it, whatever the store selected before.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..headers import headers_of, tags_of
from ..lifecycle import State
from ..records import Condition, DeadLetter, JobQuery, JobRecord, Wanted
from .pages import Grouping

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
_PAYLOAD = frozenset({"args", "header", "tag", "text"})  # conditions on what came with the job, of any size
_FAILURES = frozenset({"error", "text"})

# Seconds, for a job at a time; None: the condition does not apply to it.
SPANS: Mapping[str, Callable[[JobRecord, float], float | None]] = {
    "age": lambda job, now: now - job.created_at,
    "running": lambda job, now: (
        now - job.started_at if job.state is State.RUNNING and job.started_at is not None else None
    ),
    "wait": lambda job, now: now - job.due_at if job.state in (State.READY, State.WAITING) else None,
    "due": lambda job, now: job.due_at - now if job.state is State.SCHEDULED else None,
    "finished": lambda job, now: None if job.finished_at is None else now - job.finished_at,
}
TEXTS: Mapping[str, Callable[[JobRecord], str | None]] = {
    name: operator.attrgetter(name) for name in ("id", "queue", "task", "group", "key", "worker", "reason")
}
NUMBERS: Mapping[str, Callable[[JobRecord], float]] = {
    name: operator.attrgetter(name) for name in ("attempts", "failures", "stalls", "priority")
}


def needs_clock(query: JobQuery) -> bool:
    """Whether the result depends on the time."""
    return any(condition.field in SPANS for condition in query.more)


def reads_payload(query: JobQuery) -> bool:
    """Whether a condition needs arguments or headers, which are not read otherwise."""
    return any(condition.field in _PAYLOAD for condition in query.more)


def reads_errors(query: JobQuery, by: Grouping | None = None) -> bool:
    """Whether a condition, or a grouping, needs failures."""
    return by == "error" or any(condition.field in _FAILURES for condition in query.more)


def matches(query: JobQuery, job: JobRecord, now: float) -> bool:
    """Whether the job meets every condition of the query."""
    return (
        (not query.states or job.state in query.states)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.group is None or job.group == query.group)
        and (query.key is None or job.key == query.key)
        and (query.worker is None or job.worker == query.worker)
        and (query.id_prefix is None or job.id.startswith(query.id_prefix))
        and (not query.id_ends or has_end(query.id_ends, job.id))
        and all(_holds(condition, job, now) for condition in query.more)
    )


def matches_letter(query: JobQuery, letter: DeadLetter, now: float) -> bool:
    """Whether a dead letter meets the query: as a dead job that was created at its first death and has ended at its
    latest, with as many failures as it has deaths."""
    job = JobRecord(
        id=letter.id,
        seq=0,
        task=letter.task,
        queue=letter.queue,
        state=State.DEAD,
        args=letter.args,
        group=letter.group,
        key=letter.key,
        attempts=letter.failure_count,
        failures=letter.failure_count,
        created_at=letter.first_failed_at,
        finished_at=letter.failed_at,
        reason=letter.reason,
        errors=() if letter.error is None else (letter.error,),
        options=letter.options,
    )
    return matches(query, job, now)


def has_end(ends: tuple[str, ...], job_id: str) -> bool:
    """Whether the id begins or ends with one of these."""
    return job_id.startswith(ends) or job_id.endswith(ends)


def error_of(job: JobRecord) -> str:
    """What its latest failure was: the exception's type, else why it ended; empty if nothing went wrong."""
    if job.errors:
        return job.errors[-1].type or job.errors[-1].reason
    return job.reason or ""


def grouped_under(by: Grouping, job: JobRecord) -> str:
    """The name a job counts under."""
    if by == "error":
        return error_of(job)
    return job.state.value if by == "state" else job.queue if by == "queue" else job.task


def _holds(condition: Condition, job: JobRecord, now: float) -> bool:
    return any(_test(condition, wanted, job, now) for wanted in condition.tests) is not condition.negated


def _test(condition: Condition, wanted: Wanted, job: JobRecord, now: float) -> bool:
    field = condition.field
    if field in SPANS or field in NUMBERS:
        found = SPANS[field](job, now) if field in SPANS else NUMBERS[field](job)
        return found is not None and wanted.number is not None and _COMPARE[wanted.op](found, wanted.number)
    if field == "id":
        return has_end(wanted.parts, job.id)
    if field in TEXTS:
        text = TEXTS[field](job)
        return text is not None and fits(wanted.parts, text)
    if field == "error":
        return bool(job.errors) and any(_contains(wanted.parts, text) for text in _latest(job))
    if field == "tag":
        return any(fits(wanted.parts, tag) for tag in tags_of(job.options))
    if field == "args" and condition.path:
        return any(_equals(wanted, value) for value in _values(_decoded(job.args), condition.path))
    if field == "header":
        text = headers_of(job.options).get(".".join(condition.path))
        return text is not None and fits(wanted.parts, text)
    texts = [job.args.decode(errors="replace")]
    if field == "text":
        texts += [*_latest(job), *(text for get in TEXTS.values() if (text := get(job)))]
    return any(_contains(wanted.parts, text) for text in texts)


def fits(parts: tuple[str, ...], text: str) -> bool:
    """Whether the whole text is these parts, with anything between them. Linear: each part is looked for once."""
    if len(parts) == 1:
        return text == parts[0]
    first, *middle, last = parts
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    end = len(text) - len(last)
    return _after(middle, text, len(first), end)


def _contains(parts: tuple[str, ...], text: str) -> bool:
    """Whether the parts occur in the text in this order, ignoring case. ASCII characters match only themselves."""
    is_ascii = all(map(str.isascii, parts))
    lowered = text.encode(errors="replace").lower().decode() if is_ascii else text.lower()
    return _after([part.lower() for part in parts], lowered, 0, len(lowered))


def _after(parts: list[str], text: str, start: int, end: int) -> bool:
    for part in parts:
        found = text.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def _latest(job: JobRecord) -> tuple[str, ...]:
    return (job.errors[-1].type, job.errors[-1].text, job.errors[-1].reason) if job.errors else ()


def _decoded(args: bytes) -> Any:
    try:
        return msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        return None


def _values(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The values at the path; of a list, those of every item unless the path names a position."""
    if not path:
        yield from value if isinstance(value, list) else [value]
    elif isinstance(value, dict):
        if path[0] in value:
            yield from _values(value[path[0]], path[1:])
    elif isinstance(value, list):
        if path[0].isdecimal():
            if int(path[0][:9]) < len(value):
                yield from _values(value[int(path[0])], path[1:])
        else:
            for item in value:
                yield from _values(item, path)


def _equals(wanted: Wanted, value: Any) -> bool:
    """An argument against what was written: a number as a number, true, false and null by name, else text."""
    if isinstance(value, bool) or value is None:
        return wanted.op == "=" and fits(wanted.parts, {True: "true", False: "false", None: "null"}[value])
    if isinstance(value, int) and wanted.op == "=" and _WHOLE.fullmatch(wanted.parts[0]) and len(wanted.parts) == 1:
        return value == int(wanted.parts[0])  # a float has no room for a long one
    if isinstance(value, int | float):
        return wanted.number is not None and _COMPARE[wanted.op](value, wanted.number)
    return isinstance(value, str) and wanted.op == "=" and fits(wanted.parts, value)
