"""Parsing and formatting of durations, times and key=value arguments on the command line.

Called by the commands. Pure except for reading the clock for "ago". Bad input raises click.BadParameter or
click.UsageError with a correct example.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..lazy import import_lazily

if TYPE_CHECKING:
    from .. import clock, lifecycle
else:
    import_lazily(globals(), "..clock", "..lifecycle")  # `holdfast work` launches a runner before it needs them

if TYPE_CHECKING:  # generic for type checkers, a plain class in older supported versions of click
    from ..job import Job

    DurationType = click.ParamType[float]
    MomentType = click.ParamType[datetime]
    SizeType = click.ParamType[int]
    WordType = click.ParamType[Any]
else:
    DurationType = MomentType = SizeType = WordType = click.ParamType


# options.LogJobs is spelled here once more, so that the command line need not import it.
LOG_JOBS = ("none", "failures", "all")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json", "logfmt")


class Duration(DurationType):
    """90s, 2h, 7d, 1h30m, 500ms, or plain seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = clock.duration_seconds(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a duration. Write 90s, 15m, 2h, 7d, or plain seconds.", param, ctx)
        return seconds


class Size(SizeType):
    """512M, 2G, 64K, or plain bytes; powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a size. Write 512M, 2G, or plain bytes.", param, ctx)
        return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))


class Prefetch(WordType):
    """auto, as None, or a number."""

    name = "prefetch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip().lower()
        if text == "auto":
            return None
        if not (text.isascii() and text.isdigit()):
            self.fail(f"cannot read {value!r}. Write auto, 0 for none, or how many jobs per runner.", param, ctx)
        return int(text)


class Numbered(WordType):
    """NAME=N, as (name, number)."""

    name = "name=n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, _, number = str(value).rpartition("=")
        if not name or not (number.isascii() and number.isdigit() and int(number) > 0):
            self.fail(f"cannot read {value!r}. Write a name and a number, such as pdf=2.", param, ctx)
        return name, int(number)


class Moment(MomentType):
    """An ISO 8601 time; local time if it has no offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time. Write 2030-01-31T09:30 or 2030-01-31T09:30Z.", param, ctx)


def read_arguments(pairs: Iterable[str], document: str | None, text_fields: frozenset[str]) -> dict[str, Any]:
    """Arguments by name from --args JSON and k=v words; the latter win.

    A value is JSON if it parses as JSON (5, true, [1,2], "x"), else text; for a parameter annotated `str` it is always
    text.
    """
    arguments: dict[str, Any] = {}
    if document is not None:
        try:
            arguments = _read_json(document, "--args")
        except json.JSONDecodeError as error:
            raise click.UsageError(f'--args is not JSON: {error}. Write --args \'{{"to": "ann"}}\'.') from None
        if not isinstance(arguments, dict):
            raise click.UsageError("--args must be a JSON object: arguments are given by name.")
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"cannot read {pair!r}. Arguments are given by name: NAME=VALUE.")
        arguments[name] = value if name in text_fields else _json_or_text(value, name)
    return arguments


def _json_or_text(value: str, name: str) -> Any:
    try:
        return _read_json(value, f"{name}=", parse_constant=lambda _: value)
    except json.JSONDecodeError:
        return value


def _read_json(text: str, what: str, **how: Any) -> Any:
    """Parse JSON, or raise JSONDecodeError. JSON that cannot be represented is rejected, never treated as text."""
    try:
        return json.loads(text, **how)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise click.UsageError(
            f"{what} is nested too deep: flatten it, or store it elsewhere and give its name."
        ) from None
    except ValueError:
        raise click.UsageError(
            f"{what} has a number of too many digits. Write it in quotes if it is text: '\"123…\"'."
        ) from None


def iso(at: float | None) -> str | None:
    """A time for machines."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(at: float | datetime | None, now: float | None = None) -> str:
    """A time for people: 5s ago, in 2h."""
    if at is None:
        return ""
    moment = at.timestamp() if isinstance(at, datetime) else at
    seconds = (time.time() if now is None else now) - moment
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def short_ids(ids: Iterable[str], least: int = 13) -> dict[str, str]:
    """Prefixes that distinguish these ids, all of one length; `holdfast job` accepts a prefix, too."""
    known = set(ids)
    most = max(map(len, known), default=least)
    length = next((n for n in range(least, most) if len({one[:n] for one in known}) == len(known)), most)
    return {one: one[:length] for one in known}


def size(number: int) -> str:
    """Bytes for people: 640K, 48M, 1.5G."""
    if number >= 1 << 30:
        return f"{number / (1 << 30):.1f}G"
    return f"{number >> 20}M" if number >= 1 << 20 else f"{number >> 10}K"


def counted(number: int, things: str) -> str:
    """1 job, 2 jobs."""
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


def tries(job: Job[Any]) -> int:
    """The attempts so far, the running one among them: the store counts an attempt when it ends."""
    return job.attempts + (job.state is lifecycle.State.RUNNING)


def span(seconds: float) -> str:
    """A duration for people: 320ms, 12s, 3m, 5h, 2d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
