"""How the dashboard writes numbers, times, durations, ids and commands: one place, so that all pages agree.

Called by the templates. Everything taken from the store is escaped here or by the template; nothing is trusted.
"""

from __future__ import annotations

import inspect
import re
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup, escape
from msgspec import Struct

from ..codec import signature_of
from ..names import visible
from ..rates import UNLIMITED

ARGS_LINE_CHARS = 120
VALUE_CHARS_MAX = 20_000  # of one argument or result on its own page
_PIECES = re.compile(
    r"`(?P<code>[^`]*)`|(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00))"
    r"|\b(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})\b"
)
_JSON = re.compile(
    r'(?P<k>"(?:[^"\\]|\\.)*"(?=:))|(?P<v>"(?:[^"\\]|\\.)*")|(?P<n>-?\d[\d.eE+-]*|\b(?:true|false|null)\b)'
)
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "min", 1, "s"))


def num(number: float | None) -> str:
    """1,204; from a million on 1.62 M; a dash if unknown."""
    if number is None:
        return "–"
    if number >= 1e6:
        return f"{number / 1e6:.2f} M"
    return f"{number:,.0f}"


def rate(number: float) -> str:
    """How much per minute: 0.3, 12, 1,204."""
    return f"{number:.1f}" if 0 < number < 9.95 else num(number)


def percent(share: float | None) -> str:
    """A share: 1.2 %, 40 %; a dash if unknown."""
    if share is None:
        return "–"
    return f"{share * 100:.0f} %" if share >= 0.1 or not share else f"{share * 100:.1f} %"


def size(count: float | None) -> str:
    """A readable size."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float | None) -> str:
    """Two units at most: 38 ms, 1.2 s, 1 min 18 s, 2 h 05 m."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, name, smaller, small_name in _UNITS:
        if whole >= unit:
            rest = whole % unit // smaller
            pad = f"{rest:02d}" if small_name == "m" else str(rest)
            return f"{whole // unit} {name} {pad} {small_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def seconds_of(moment: datetime | float | None) -> float | None:
    """Unix seconds of a time in either form."""
    return moment.timestamp() if isinstance(moment, datetime) else moment


def exact(moment: float) -> str:
    """2 Nov 2026, 10:24:05 UTC."""
    when = datetime.fromtimestamp(moment, UTC)
    return f"{when.day} {when:%b %Y, %H:%M:%S} UTC"


def _stamp(moment: float, text: str, kind: str = "clock") -> Markup:
    """A <time>. The script keeps the text of `ago` and `since` up to date between two updates of the page."""
    iso = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time class="{}" datetime="{}" title="{}">{}</time>').format(kind, iso, exact(moment), text)


def ago(moment: datetime | float | None, now: float) -> str | Markup:
    """A relative time, with the exact one on hover."""
    at = seconds_of(moment)
    if at is None:
        return "–"
    if at > now + 0.5:
        return _stamp(at, f"in {coarse(at - now)}", "ago")
    return _stamp(at, f"{coarse(now - at)} ago", "ago")


def since(moment: datetime | float | None, now: float) -> str | Markup:
    """How long ago, without the word."""
    at = seconds_of(moment)
    return "–" if at is None else _stamp(at, coarse(now - at), "since")


def coarse(seconds: float) -> str:
    """A duration in one unit, for lists that are read at a glance."""
    if seconds < 1:
        return "< 1 s"
    for unit, name in ((86400 * 2, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit:
            return f"{seconds / (86400 if name == 'd' else unit):.0f} {name}"
    return "< 1 s"


def clock(moment: datetime | float | None, now: float) -> str | Markup:
    """A clock time: 10:24:05 today, 2 Nov this year, 2 Nov 2025 before."""
    at = seconds_of(moment)
    if at is None:
        return "–"
    when, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    if when.date() == today.date():
        return _stamp(at, f"{when:%H:%M:%S}")
    return _stamp(at, f"{when.day} {when:%b %H:%M}" if when.year == today.year else f"{when.day} {when:%b %Y}")


def short(id: str) -> str:
    """The last eight characters: ids begin with the time, which jobs of a minute share."""
    return id[-8:]


def short_worker(id: str) -> str:
    """The first eight characters: a worker's id begins at random, and ends with when its process began."""
    return id[:8]


def limit(value: int | None) -> str:
    """A limit; UNLIMITED is the word none."""
    return "none" if value is None or value >= UNLIMITED else num(value)


def quoted(value: str) -> str:
    """A value for the query language, in quotes where it needs them."""
    if re.fullmatch(r"[\w.:@/+-]+", value) and not value.startswith(("<", ">", "=")):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def command(*words: str) -> str:
    """A command line, quoted for the shell."""
    return shlex.join(words)


def prose(text: str, root: str, now: float) -> Markup:
    """A sentence of explain or doctor: `code` as code, times as clock times, ids of jobs as short links."""
    made, at = Markup(), 0
    for found in _PIECES.finditer(text):
        made += escape(visible(text[at : found.start()]))
        if found["time"]:
            made += clock(datetime.fromisoformat(found["time"]), now)
        elif found["id"]:
            link = f"{root}/job?{urlencode({'id': found['id']})}"
            made += Markup('<a class="id" href="{}" title="{}">{}</a>').format(link, found["id"], short(found["id"]))
        else:
            made += Markup("<code>{}</code>").format(visible(found["code"]))
        at = found.end()
    return made + escape(visible(text[at:]))


class Parameter(Struct, frozen=True):
    """A parameter of a task, for a form."""

    name: str
    kind: str
    default: str | None  # None: it must be given


def parameters(fn: Any) -> list[Parameter]:
    """The parameters a job of this function takes; its Context is not one of them."""
    return [
        Parameter(one.name, _kind(one.annotation), None if one.default is one.empty else repr(one.default))
        for place, one in enumerate(signature_of(fn).parameters.values())
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and not (place == 0 and _kind(one.annotation) == "Context")
    ]


def signature(fn: Any) -> str:
    """As the code spells it: `to: str, text: str = ''`."""
    return ", ".join(
        f"{one.name}{f': {one.kind}' if one.kind else ''}{'' if one.default is None else f' = {one.default}'}"
        for one in parameters(fn)
    )


def _kind(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.removeprefix("holdfast.").removeprefix("context.")


# ----------------------------------------------------------------------------------------------------------------------
# Arguments and results: JSON as text, shortened.


def plain(value: Any) -> Any:
    """Anything stored or rebuilt as JSON values."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def as_json(text: str) -> Any:
    """A value as typed: JSON where it reads as JSON, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def one_line(args: Any) -> str:
    """Arguments in one line of a table."""
    words = (
        ", ".join(f"{name}={_json(value)}" for name, value in args.items()) if isinstance(args, dict) else _json(args)
    )
    return words if len(words) <= ARGS_LINE_CHARS else f"{words[: ARGS_LINE_CHARS - 1]}…"


def pretty(value: Any) -> str:
    """A value over several lines; a huge one is cut, and says so."""
    text = msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode(errors="replace")
    return clipped(text)


def coloured(value: Any) -> Markup:
    """The same with keys, texts and numbers in different colours."""
    text, made, at = visible(pretty(value)), Markup(), 0
    for found in _JSON.finditer(text):
        made += escape(text[at : found.start()])
        made += Markup('<span class="{}">{}</span>').format(found.lastgroup or "", found[0])
        at = found.end()
    return made + escape(text[at:])


def clipped(text: str) -> str:
    """Text for a page, cut at VALUE_CHARS_MAX characters."""
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}\n… {len(text) - VALUE_CHARS_MAX:,} more characters"


def _json(value: Any) -> str:
    return msgspec.json.encode(plain(value)).decode(errors="replace")


def traceback(text: str) -> Markup:
    """A traceback with the user's own frames in bold and the last line marked."""
    lines = visible(clipped(text)).rstrip().split("\n")
    if not lines:
        return Markup()
    return Markup("\n").join([*_frames(lines[:-1]), Markup('<span class="e">{}</span>').format(lines[-1])])


def _frames(lines: list[str]) -> Iterator[Markup]:
    bold = False
    for line in lines:
        if line.lstrip().startswith('File "'):
            bold = "site-packages" not in line and "/lib/python" not in line
        yield Markup("<b>{}</b>").format(line) if bold and line.startswith("  ") else escape(line)


def now() -> float:
    """The time the page was made, on this machine's clock."""
    return time.time()
