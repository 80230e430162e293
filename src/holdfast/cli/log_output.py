"""Log output of `holdfast work` and of its runner processes: where it goes, its level and its format.

Called by work.py (in the keeper's process) and runner_main.py. Changes no logging that the user's code has set up: it
gives a handler only to a root logger that has none. In a runner, log lines go past the capture of printed output,
because jobs get their handlers' records another way (worker/runner/log_capture.py).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from ..names import visible, visible_json
from ..worker.runner.log_capture import JOB_FIELDS, message_of
from ..worker.runner.output import Captured

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *JOB_FIELDS}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the record carries beside its text: its job, if it was logged by a handler, and its `extra`."""
    found = {shown: value for name, shown in JOB_FIELDS.items() if (value := getattr(record, name, None))}
    found |= {name: value for name, value in vars(record).items() if name not in _OWN}
    return found


class TextFormatter(logging.Formatter):
    """`12:00:01 INFO    text`; other loggers than ours are named, with the job whose handler logged the line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        if not record.name.startswith("holdfast"):
            record.message = f"{record.name}: {visible(message_of(record))}{_whose(record)}"
        return super().formatMessage(record)


def _whose(record: logging.LogRecord) -> str:
    job, task = getattr(record, "holdfast_job", ""), getattr(record, "holdfast_task", "")
    return f" [job {visible(job)} ({visible(task)})]" if job else ""


class JSONFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "timestamp": _instant(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **fields_of(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return visible_json(msgspec.json.encode(document, enc_hook=repr).decode())


class LogfmtFormatter(logging.Formatter):
    """`ts=… level=info logger=… msg="…" name=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        pairs: dict[str, Any] = {
            "ts": _instant(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
            **fields_of(record),
        }
        if record.exc_info:
            pairs["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{name}={_logfmt(value)}" for name, value in pairs.items())


def _message(record: logging.LogRecord) -> str:
    """The text; of our messages with fields its first line, since the fields have the rest."""
    text = message_of(record)
    has_fields = record.name.startswith("holdfast") and "event" in vars(record)
    return text.partition("\n")[0].rstrip(":") if has_fields else text


def _logfmt(value: object) -> str:
    plain = msgspec.to_builtins(value, enc_hook=repr)
    text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    if text and all(c > " " and c not in '"=' for c in text) and text.isprintable():
        return text
    return visible_json(msgspec.json.encode(text).decode())


def _instant(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


FORMATTERS: dict[str, Callable[[], logging.Formatter]] = {
    "text": TextFormatter,
    "json": JSONFormatter,
    "logfmt": LogfmtFormatter,
}


@contextlib.contextmanager
def logs_on_stderr(level: str, form: str, stream: TextIO | None = None) -> Iterator[None]:
    """Inside this context logs go to stderr, or to `stream`, unless the program already configured logging."""
    root, own = logging.getLogger(), logging.getLogger("holdfast")
    levels = root.level, own.level
    own.setLevel(level.upper())
    _past_capture(stream)
    handler: logging.Handler | None = None
    if not own.hasHandlers():
        handler = logging.StreamHandler(stream or _uncaptured(sys.stderr))
        handler.setFormatter(FORMATTERS[form]())
        root.addHandler(handler)
        root.setLevel(level.upper())
    try:
        yield
    finally:
        own.setLevel(levels[1])
        if handler is not None:
            root.removeHandler(handler)
            root.setLevel(levels[0])


def _past_capture(stream: TextIO | None) -> None:
    """Have handlers that the user's code made write past the capture of printed output: jobs get log records another
    way, and would have every line twice."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                if stream is not None and handler.stream in (sys.stdout, sys.stderr):
                    handler.setStream(stream)
                else:
                    handler.setStream(_uncaptured(handler.stream))


def _uncaptured(stream: TextIO) -> TextIO:
    return stream.real if isinstance(stream, Captured) else stream
