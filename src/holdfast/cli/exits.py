"""Exit codes, and how every error becomes one: a sentence for people, a document for machines, never a traceback.

Called by main and by commands that fail on purpose. Imports nothing heavy: reporting an error must be cheap.
HOLDFAST_DEBUG=1 also shows the traceback.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING

from .. import errors
from ..lazy import import_lazily
from ..names import visible

if TYPE_CHECKING:
    import click
else:
    import_lazily(globals(), "click")  # a runner has exit codes and no command line


class Exit(IntEnum):
    """The process's exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4  # the store, also when its file does not exist
    SCHEMA = 5
    PARTLY = 6
    IMPORT_FAILED = 7
    INTERRUPTED = 130


WORDS = {
    Exit.FAILED: "failed",
    Exit.USAGE: "usage",
    Exit.NOT_FOUND: "not_found",
    Exit.UNREACHABLE: "store_unreachable",
    Exit.SCHEMA: "schema",
    Exit.PARTLY: "partly_done",
    Exit.IMPORT_FAILED: "import_failed",
    Exit.INTERRUPTED: "interrupted",
}

# The first matching class decides, so more specific ones come first.
CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (errors.JobNotFound, Exit.NOT_FOUND),
    (errors.CronEntryNotFound, Exit.NOT_FOUND),
    (errors.ResultGone, Exit.NOT_FOUND),
    (errors.TaskNotRegistered, Exit.NOT_FOUND),
    (errors.BackendUnavailable, Exit.UNREACHABLE),
    (errors.SchemaMismatch, Exit.SCHEMA),
    (errors.ConfigurationError, Exit.USAGE),
    (errors.ArgumentsRejected, Exit.USAGE),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


class CommandFailed(Exception):
    """A command cannot do what was requested; explains why, and what to do next."""

    def __init__(self, exit: Exit, text: str, hint: str = "") -> None:
        self.exit, self.text, self.hint = exit, text, hint
        super().__init__(text)


def exit_for(error: BaseException) -> Exit:
    """The exit code for an error."""
    if isinstance(error, CommandFailed):
        return error.exit
    codes: tuple[tuple[type[BaseException], Exit], ...] = (
        *CODES,
        (click.UsageError, Exit.USAGE),
        (click.Abort, Exit.INTERRUPTED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), Exit.FAILED)


def tell(error: BaseException, *, as_json: bool) -> Exit:
    """Report the error once, in the requested format, and return its exit code."""
    code = exit_for(error)
    text, hint = _sentence(error)
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    # Newer versions of click raise this for a command without arguments; its text is the whole help.
    no_words: type[Exception] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
    if isinstance(error, no_words) and isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_help(), err=True)
        return code
    if as_json:
        document = {"error": {"code": WORDS[code], "message": text, "hint": hint}}
        with contextlib.suppress(OSError):  # stdout on a full disk, perhaps the very error: report it on stderr
            click.echo(json.dumps(document, ensure_ascii=False))
            return code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    label = click.style("interrupted", fg="yellow") if code is Exit.INTERRUPTED else click.style("error", fg="red")
    click.echo(f"{label}: {visible(text)}" if text else label, err=True, color=colour_wanted())
    if hint:
        click.echo(f"{click.style('next', fg='cyan')}: {visible(hint)}", err=True, color=colour_wanted())
    return code


def colour_wanted() -> bool | None:
    """False under NO_COLOR; otherwise click decides by the terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _sentence(error: BaseException) -> tuple[str, str]:
    """What happened, and, if stated separately, what to do next."""
    if isinstance(error, CommandFailed):
        return error.text, error.hint
    if isinstance(error, click.UsageError):
        where = f" `{error.ctx.command_path} --help` shows how." if error.ctx is not None else ""
        return error.format_message(), where.strip()
    if isinstance(error, click.ClickException):
        return error.format_message(), ""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "", ""
    if isinstance(error, errors.HoldfastError):
        return str(error), ""
    text = " ".join(str(error).split()) or "no text"
    if isinstance(error, OSError):
        return f"the system reports: {text}", "HOLDFAST_DEBUG=1 shows the traceback."
    return f"unexpected {type(error).__name__}: {text}", "HOLDFAST_DEBUG=1 shows the traceback; please report it."
