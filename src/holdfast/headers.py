"""Headers: short texts that travel with a job for the code around it, such as a request id or a trace context.

Given with `.options(headers=…)` or added by `@app.on_enqueue`, read as `ctx.headers`. They are stored among the call's
options (options/tasks.py), as is who enqueued the job, and every store keeps them as it keeps those. Pure. No message
here shows a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from .dead_copies import Death, deaths_of, is_copy
from .errors import ConfigurationError
from .names import check_name, plain

DEAD_ID, DEAD_QUEUE, DEAD_REASON = "dead-id", "dead-queue", "dead-reason"  # of a copy: whose it is
TAGS = "tags"  # the header that has a job's tags, separated by commas
TAKES_RESULTS = b'"results":1'  # among the stored options of a job whose arguments hold results of other jobs
HEADERS_MAX = 32  # per job
HEADERS_BYTES_MAX = 8192  # of one job's headers, names and values in UTF-8


class _OnlyHeaders(Struct, frozen=True):
    headers: dict[str, str] = {}
    by: str = ""
    dead: tuple[Death, ...] = ()


class _OnlyParents(Struct, frozen=True):
    after: int = 0


class _OnlyBatch(Struct, frozen=True):
    batch: str = ""


def check_headers(value: object) -> dict[str, str]:
    """Headers as users give them, or ConfigurationError. `None` means none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"headers= takes a dict of str to str, not {type(value).__name__}.")
    if len(value) > HEADERS_MAX:
        raise ConfigurationError(
            f"a job has at most {HEADERS_MAX} headers, and {len(value)} were given. Pass larger data as an argument."
        )
    headers, size = {}, 0
    for name, text in value.items():
        name = check_name(name, "header's name")
        if not isinstance(text, str):
            raise ConfigurationError(f"header {name!r} must be a str, not {type(text).__name__}. Give it as text.")
        try:
            size += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise ConfigurationError(f"header {name!r} has a lone surrogate, which is not text.") from None
        headers[name] = plain(text)
    if size > HEADERS_BYTES_MAX:
        raise ConfigurationError(
            f"the headers of a job have at most {HEADERS_BYTES_MAX} bytes together, and these have {size}. "
            "Pass larger data as an argument."
        )
    return headers


def check_tags(value: object) -> str:
    """Tags as users give them, as one header's text; empty for none."""
    if value is None:
        return ""
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    tags = [check_name(tag, "tag") for tag in given]
    for tag in tags:
        if "," in tag or any(map(str.isspace, tag)):
            raise ConfigurationError(f"a tag has no commas and no spaces: {tag!r}. Give several as a list.")
    return ",".join(dict.fromkeys(tags))


def tags_of(stored: bytes | None) -> tuple[str, ...]:
    """The tags among a job's stored options."""
    text = headers_of(stored).get(TAGS, "")
    return tuple(text.split(",")) if text else ()


def headers_of(stored: bytes | None) -> dict[str, str]:
    """The headers among a job's stored options; none if another version wrote something this one cannot read.

    A copy of a dead job has three more, which say whose it is (dead_copies.py).
    """
    found = _read(stored)
    if not found.dead:
        return found.headers
    death = found.dead[0]
    return {**found.headers, DEAD_ID: death.id, DEAD_QUEUE: death.queue, DEAD_REASON: death.reason}


def enqueued_by(stored: bytes | None) -> str:
    """Who enqueued the job, among its stored options: `names.this_process`, a job, a cron entry or an operator."""
    return _read(stored).by


def _read(stored: bytes | None) -> _OnlyHeaders:
    if stored is None:
        return _OnlyHeaders()
    try:
        return msgspec.json.decode(stored, type=_OnlyHeaders)
    except (msgspec.MsgspecError, RecursionError):
        return _OnlyHeaders()


def parents_number(stored: bytes) -> int:
    """How many parents a job has, by its stored options."""
    if b'"after":' not in stored:
        return 0
    try:
        return msgspec.json.decode(stored, type=_OnlyParents).after
    except msgspec.MsgspecError:
        return 0


def with_headers(stored: bytes | None, headers: Mapping[str, str]) -> bytes | None:
    """A job's stored options with exactly these headers; the other options stay as they are."""
    return _with(stored, "headers", headers)


def with_enqueuer(stored: bytes | None, by: str) -> bytes | None:
    """A job's stored options with this as who enqueued it; empty: without."""
    return _with(stored, "by", by)


def with_parents(stored: bytes | None, number: int) -> bytes | None:
    """A job's stored options with this number of parents."""
    return _with(stored, "after", number)


def with_results(stored: bytes | None) -> bytes | None:
    """A job's stored options, with the mark that its arguments contain results of other jobs."""
    return _with(stored, "results", 1)


def with_batch(stored: bytes | None, id: str) -> bytes | None:
    """A job's stored options with the batch it belongs to."""
    return _with(stored, "batch", id)


def batch_of(stored: bytes | None) -> str:
    """The id of the batch a job belongs to, by its stored options; empty if it belongs to none."""
    if stored is None or b'"batch":' not in stored or is_copy(stored):  # a copy of a member is none
        return ""
    try:
        return msgspec.json.decode(stored, type=_OnlyBatch).batch
    except msgspec.MsgspecError:
        return ""


def first_id(stored: bytes | None, job_id: str) -> str:
    """The id of the job that a job is a copy of, over any number of copies; its own if it is none."""
    deaths = deaths_of(stored)
    return deaths[-1].id if deaths else job_id


def _with(stored: bytes | None, name: str, value: Mapping[str, str] | str | int) -> bytes | None:
    fields: dict[str, msgspec.Raw] = {} if stored is None else msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
    fields.pop(name, None)
    if value:
        fields[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields) if fields else None
