"""One verb on several items: find them, show them, ask, apply it one by one, and report each result.

Called by operate and dead. Each item is its own step in the store; a refused one never stops the others. Returns the
exit code: 0 for all, 6 for some, else that of the first refusal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..bulk import BulkResult, BulkSettings, Progress
from ..errors import HoldfastError, JobNotFound
from ..lifecycle import State
from .completion import complete_query
from .exits import CommandFailed, Exit, exit_for
from .parse import Moment, counted
from .session import Command, Session

if TYPE_CHECKING:
    from ..app import Holdfast

SHOWN_OF_MANY = 10


class Refusal:
    """An item the verb was refused for, and why."""

    def __init__(self, id: str, error: HoldfastError) -> None:
        self.id, self.error = id, error


def _query_by_q(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """The former short form of --query. Elsewhere -q names a queue, so a word that may be one is refused here."""
    if value is None or ctx.resilient_parsing:
        return
    if ":" not in value and value.split()[:1] not in [[word] for word in (*State, "live", "finished")]:
        raise click.UsageError(
            f"-q names a queue in other commands. Write --query 'queue:{value}', or --query {value!r}."
        )
    click.echo(
        "note: -q is now --query, because elsewhere it names a queue; it will be removed in version 0.2.", err=True
    )
    ctx.params["query"] = value


def bulk_options(command: Command) -> Command:
    """--query, --limit, --dry-run, --yes."""
    for option in (
        click.option(
            "--query",
            "query",
            metavar="QUERY",
            help="All jobs that match; asks for confirmation.",
            shell_complete=complete_query,
        ),
        click.option(
            "-q", metavar="QUERY", expose_value=False, callback=_query_by_q, help="The former short form of --query."
        ),
        click.option("--limit", "-n", type=click.IntRange(1), help="With --query: only the newest N that match."),
        click.option(
            "--as-of",
            type=Moment(),
            metavar="TIME",
            help="With --query: repeat an interrupted run that began at TIME; no job is acted on twice.",
        ),
        click.option("--dry-run", is_flag=True, help="Show what would change; change nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
    ):
        command = option(command)
    return command


def run_bulk(
    session: Session,
    app: Holdfast,
    verb: str,
    query: str,
    settings: BulkSettings,
    *,
    limit: int | None,
    as_of: datetime | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """One verb on every job that matches: count first, ask, act with a progress bar, and report."""
    method = verb.replace("-", "_")
    wanted: BulkSettings = {**settings, "limit": limit, "as_of": as_of, "dry_run": True}
    found = app.bulk(method, query, **wanted)
    if not found.matched:
        raise CommandFailed(Exit.NOT_FOUND, f"no job matches {query!r}.", "`holdfast jobs` lists what is there.")
    if limit is not None and not session.as_json and len(found.matched) >= limit:
        session.print.note(f"the newest {limit} of those that match; --limit takes more, or repeat it.")
    if dry_run:
        return preview(session, verb, found.matched, [])
    confirm(session, f"{verb} {counted(len(found.matched), 'jobs')} of {app.safe_url} that match {query!r}?", yes=yes)
    session.announce(app)
    if not session.as_json and len(found.matched) > SHOWN_OF_MANY:
        session.print.note(f"if this is interrupted, repeat it with --as-of {found.as_of.isoformat()}")
    with progress_bar(session, verb, len(found.matched)) as progress:
        wanted = {**wanted, "as_of": found.as_of, "dry_run": False, "progress": progress}
        done = app.bulk(method, query, **wanted)
    return report_bulk(session, app, done, verb)


def report_bulk(session: Session, app: Holdfast, result: BulkResult, verb: str = "delete") -> int:
    """Show what a bulk action did."""
    refused = [Refusal(id, error) for id, error in result.refused.items()]
    if result.stopped is not None:
        refused.append(Refusal("", result.stopped))
    return report(session, app, verb, list(result.done.items()), refused, as_of=result.as_of.isoformat())


@contextlib.contextmanager
def progress_bar(session: Session, verb: str, total: int) -> Iterator[Progress | None]:
    """A bar on a terminal's stderr; None elsewhere, and for a few items."""
    if session.as_json or total <= SHOWN_OF_MANY or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def resolve(
    app: Holdfast, prefixes: Sequence[str], find: Callable[[Holdfast, str], str]
) -> tuple[list[str], list[Refusal]]:
    """Resolve what the user typed to ids before anything is changed; missing ones are refused, ambiguous ones raise."""
    found: list[str] = []
    refused: list[Refusal] = []
    for prefix in prefixes:
        try:
            found.append(find(app, prefix))
        except JobNotFound as error:
            refused.append(Refusal(prefix, error))
    return list(dict.fromkeys(found)), refused


def confirm(session: Session, question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, --yes is required."""
    if yes:
        return
    if session.as_json or not sys.stdin.isatty():
        can_preview = "dry_run" in click.get_current_context().params
        raise CommandFailed(
            Exit.USAGE,
            f"{question} There is no terminal to confirm this on.",
            "Add --yes, or preview it with --dry-run." if can_preview else "Add --yes.",
        )
    if not click.confirm(question, err=True):
        raise CommandFailed(Exit.FAILED, "not confirmed; nothing was changed.")


def say_if_more(session: Session, found: Sequence[object], limit: int) -> None:
    """A bulk verb that reached its limit may have left others untouched: print that, except with --json."""
    if len(found) >= limit and not session.as_json:
        session.print.note(f"the newest {limit} of those that match; --limit takes more, or repeat it.")


def preview(session: Session, verb: str, ids: Sequence[str], refused: Sequence[Refusal]) -> int:
    """--dry-run: show what would be done."""
    if session.as_json:
        document = {"dry_run": True, "verb": verb, "would_change": list(ids), "refused": _as_documents(refused)}
        session.print.document(document)
    else:
        for id in ids:
            session.print.line(id)
        _tell_refusals(session, refused)
        session.print.note(f"would {verb} {len(ids)}; nothing was changed.")
    return _code(len(ids), refused)


def carry_out(
    session: Session,
    app: Holdfast,
    verb: str,
    ids: Sequence[str],
    refused: list[Refusal],
    act: Callable[[str], Any],
    became: Callable[[Any], str],
) -> int:
    """Apply the verb to each item, and report its result."""
    done: list[tuple[str, str]] = []
    for id in ids:
        try:
            done.append((id, became(act(id))))
        except HoldfastError as error:
            refused.append(Refusal(id, error))
    return report(session, app, verb, done, refused)


def report(
    session: Session,
    app: Holdfast,
    verb: str,
    done: Sequence[tuple[str, str]],
    refused: Sequence[Refusal],
    **facts: str,
) -> int:
    """Show what was done and what was refused; returns the exit code."""
    if session.as_json:
        changed = [{"id": id, "now": state} for id, state in done]
        session.print.document(
            {"store": app.safe_url, "verb": verb, **facts, "changed": changed, "refused": _as_documents(refused)},
        )
    else:
        for id, state in done[: None if len(done) <= SHOWN_OF_MANY else SHOWN_OF_MANY]:
            session.print.line(f"{id}  {state}")
        if len(done) > SHOWN_OF_MANY:
            session.print.note(f"… and {len(done) - SHOWN_OF_MANY} more.")
        _tell_refusals(session, refused)
        if len(done) + len(refused) > 1:
            session.print.note(f"{verb}: {len(done)} done, {len(refused)} refused.")
    return _code(len(done), refused)


def _tell_refusals(session: Session, refused: Sequence[Refusal]) -> None:
    for refusal in refused[:SHOWN_OF_MANY]:
        session.print.note(str(refusal.error), label="refused")


def _as_documents(refused: Sequence[Refusal]) -> list[dict[str, str]]:
    return [{"id": refusal.id, "why": str(refusal.error)} for refusal in refused]


def _code(done: int, refused: Sequence[Refusal]) -> int:
    if not refused:
        return Exit.DONE
    return Exit.PARTLY if done else exit_for(refused[0].error)
