"""`holdfast dead …`: list, count, show, note, revive and discard dead letters; `holdfast failures` groups by cause.

Loaded by main when called. Revive and discard are one step each in the store; discard deletes data and asks first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from ..bulk import BulkSettings
from ..edits import EditSettings
from ..job import DeadLetter, Job
from ..names import nearest
from ..queries import make_query
from .bulk import Refusal, carry_out, confirm, preview, resolve, run_bulk, say_if_more
from .completion import complete_query, complete_queue, complete_task
from .documents import failures_document, letter_document, plain
from .exits import CommandFailed, Exit
from .jobs import QUERY_HELP
from .operate import me
from .parse import Moment, ago, counted, iso, read_arguments
from .session import Command, Session, find_letter_id, queue_hint, session_options

if TYPE_CHECKING:
    from ..app import Holdfast

REASONS_SEEN_MAX = 500  # dead letters whose reasons are suggested for a mistyped one


@click.group()
def dead() -> None:
    """List, count, show, note, revive and discard dead letters: one per logical job that died."""


def _filters(command: Command) -> Command:
    for option in (
        click.option("--queue", "-q", help="Only this queue.", shell_complete=complete_queue),
        click.option("--task", "-t", help="Only this task.", shell_complete=complete_task),
        click.option("--reason", "-r", help="Only with this reason: failed, memory, timeout, stalled, crash, …"),
    ):
        command = option(command)
    return command


@dead.command("ls", epilog=QUERY_HELP)
@click.argument("query", nargs=-1, shell_complete=complete_query)
@_filters
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="Show at most N.")
@session_options
def ls(
    session: Session, query: tuple[str, ...], queue: str | None, task: str | None, reason: str | None, limit: int
) -> int:
    """List dead letters, latest death first."""
    with session.store() as app:
        found = app.dead.list(" ".join(query), queue=queue, task=task, reason=reason, limit=limit)
        hint = "" if found else _hint(app, " ".join(query), queue, reason)
    if session.as_json:
        session.print.document({"letters": [letter_document(letter) for letter in found]})
        return Exit.DONE
    session.print.table(
        ("id", "task", "queue", "deaths", "latest", "reason", "error"),
        [
            (
                letter.id,
                letter.task,
                letter.queue,
                str(letter.failure_count),
                ago(letter.failed_at),
                f"{letter.reason}{' (revived)' if letter.revived_at else ''}",
                _error(letter),
            )
            for letter in found
        ],
        empty="no dead letters.",
        ids=True,
    )
    if hint:
        session.print.note(hint)
    return Exit.DONE


def _hint(app: Holdfast, text: str, queue: str | None, reason: str | None) -> str:
    """What may have been meant where nothing was found: a queue or a reason that is not there."""
    query = make_query(text, {})
    named = [wanted.parts for one in query.more if one.field == "reason" and not one.negated for wanted in one.tests]
    reasons = [reason] if reason is not None else [parts[0] for parts in named if len(parts) == 1]
    seen = {letter.reason for letter in app.dead.list(limit=REASONS_SEEN_MAX)} if reasons else set()
    for one in reasons:
        if seen and one not in seen:
            near = nearest(one, seen) or f" There are: {', '.join(sorted(seen))}."
            return f"no dead letter has the reason {one!r}.{near}"
    return queue_hint(app, queue if queue is not None else query.queue)


@click.command()
@click.option("--queue", "-q", help="Only this queue.")
@click.option("--task", "-t", help="Only this task.")
@session_options
def failures(session: Session, queue: str | None, task: str | None) -> int:
    """Group dead letters by task, exception and the top frame of your own code; the most frequent first."""
    with session.store() as app:
        found = app.failures(queue=queue, task=task)
    if session.as_json:
        session.print.document(failures_document(found))
        return Exit.DONE
    session.print.table(
        ("failure", "task", "dead", "deaths", "first", "latest", "trend", "where"),
        [
            (
                kind.name,
                kind.task,
                str(kind.letters),
                str(kind.deaths),
                ago(kind.first),
                ago(kind.last),
                kind.trend,
                kind.place,
            )
            for kind in found.kinds
        ],
        empty="no dead letters.",
    )
    if found.capped:
        session.print.note(f"only the newest {found.letters} dead letters were read.")
    return Exit.DONE


def _error(letter: DeadLetter) -> str:
    error = letter.error
    return "" if error is None else f"{error.type}: {error.text}" if error.type else error.text


@dead.command("show")
@click.argument("id")
@session_options
def show(session: Session, id: str) -> int:
    """Show one dead letter with its history."""
    with session.store() as app:
        letter = app.dead.get(find_letter_id(app, id))
        notes = app.dead.notes(letter)
    if session.as_json:
        written = [{"at": iso(one.at), "by": one.by, "text": one.text} for one in notes]
        session.print.document({"letter": {**letter_document(letter), "notes": written}})
        return Exit.DONE
    session.print.fields(
        [
            ("id", letter.id),
            ("task", letter.task),
            ("queue", letter.queue),
            ("key", letter.key),
            ("group", letter.group),
            ("deaths", str(letter.failure_count)),
            ("first", ago(letter.first_failed_at)),
            ("latest", ago(letter.failed_at)),
            ("reason", letter.reason),
            ("error", _error(letter)),
            ("revived", ago(letter.revived_at)),
            ("revives", ago(letter.revive_at)),
            ("arguments", json.dumps(plain(letter.args), ensure_ascii=False)),
        ]
    )
    if notes:
        session.print.heading("notes")
        for one in notes:
            session.print.line(f"  {iso(one.at)}  {one.by}  {one.text}")
    if letter.history:
        session.print.heading("earlier deaths")
        for past in letter.history:
            session.print.line(f"  {iso(past.at)}  {past.job_id}  {past.reason}  {past.error}")
    if letter.error is not None and letter.error.traceback:
        session.print.heading("traceback")
        session.print.line(letter.error.traceback.rstrip())
    return Exit.DONE


@dead.command("note")
@click.argument("id")
@click.argument("text")
@session_options
def note(session: Session, id: str, text: str) -> int:
    """Add a note to a dead letter: `dead show` and the job's timeline show it."""
    with session.store() as app:
        session.announce(app)
        job = app.dead.note(find_letter_id(app, id), text, by=me())
        if session.as_json:
            session.print.document({"store": app.safe_url, "id": job.id, "notes": len(app.dead.notes(job))})
            return Exit.DONE
    session.print.line(f"noted on {job.id}.")
    return Exit.DONE


@dead.command("stats")
@click.option("--queue", "-q", help="Only this queue.", shell_complete=complete_queue)
@session_options
def stats(session: Session, queue: str | None) -> int:
    """Count dead letters by task, by reason and by the day of their latest death."""
    with session.store() as app:
        found = app.dead.stats(queue=queue)
    if session.as_json:
        session.print.document({"stats": to_builtins(found)})
        return Exit.DONE
    if not found.letters:
        session.print.line("no dead letters.")
        return Exit.DONE
    session.print.line(f"{counted(found.letters, 'dead letters')}, {counted(found.deaths, 'deaths')}.")
    for heading, counts in (("task", found.by_task), ("reason", found.by_reason), ("day", found.by_day)):
        session.print.table((heading, "letters"), [(name, str(count)) for name, count in counts.items()], empty="")
    if found.capped:
        session.print.note(f"only the newest {found.letters} dead letters were read.")
    return Exit.DONE


def _acting(command: Command) -> Command:
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would change; change nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
        click.option("--all", "everything", is_flag=True, help="All dead letters that match; asks for confirmation."),
        click.option("--limit", "-n", default=10_000, show_default=True, type=click.IntRange(1), help="With --all."),
    ):
        command = option(command)
    return _filters(command)


def _by_query(command: Command) -> Command:
    for option in (
        click.option("--query", metavar="QUERY", help="All dead jobs that match; asks for confirmation."),
        click.option("--as-of", type=Moment(), metavar="TIME", help="With --query: repeat an interrupted run."),
    ):
        command = option(command)
    return command


@dead.command("revive")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--args", "document", metavar="JSON", help="New arguments, all of them, as one JSON object.")
@click.option("--rate", metavar="RATE", help="With --query: jobs become due at this rate, such as 10/s.")
@_by_query
@_acting
@session_options
def revive(session: Session, document: str | None, rate: str | None, **asked: Any) -> int:
    """Run dead jobs again with fresh budgets. Their letters stay until the jobs succeed."""
    settings: BulkSettings = {}
    if document is not None:
        settings["args"] = read_arguments((), document, frozenset())
    if rate is not None:
        if asked["query"] is None:
            raise click.UsageError("--rate goes with --query.")
        settings["rate"] = rate
    return _act(session, "revive", settings, **asked)


@dead.command("discard")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_by_query
@_acting
@session_options
def discard(session: Session, **asked: Any) -> int:
    """Remove dead letters. Their jobs stay dead until they are pruned."""
    return _act(session, "discard", {}, **asked)


def _act(
    session: Session,
    verb: str,
    settings: BulkSettings,
    *,
    ids: tuple[str, ...],
    query: str | None,
    as_of: datetime | None,
    everything: bool,
    queue: str | None,
    task: str | None,
    reason: str | None,
    limit: int,
    dry_run: bool,
    yes: bool,
) -> int:
    if [bool(ids), everything, query is not None].count(True) != 1:
        raise click.UsageError("give either ids, or --all with filters, or --query.")
    with session.store() as app:
        if query is not None:
            wanted: BulkSettings = {"by": me(), **settings}
            return run_bulk(session, app, verb, query, wanted, limit=limit, as_of=as_of, dry_run=dry_run, yes=yes)
        changes: EditSettings = {"args": settings["args"]} if "args" in settings else {}
        refused: list[Refusal] = []
        if everything:
            letters = app.dead.list(queue=queue, task=task, reason=reason, limit=limit)
            found = [letter.id for letter in letters if letter.revived_at is None]
            if not found:
                raise CommandFailed(Exit.NOT_FOUND, "no dead letter matches.", "`holdfast dead ls` lists them.")
            say_if_more(session, letters, limit)
        else:
            found, refused = resolve(app, ids, find_letter_id)
        if dry_run:
            return preview(session, verb, found, refused)
        if found and (everything or verb == "discard"):
            confirm(session, f"{verb} {counted(len(found), 'dead letters')} of {app.safe_url}?", yes=yes)
        session.announce(app)
        if verb == "revive":
            revive: Callable[[str], Job[Any]] = lambda one: app.dead.revive(one, by=me(), **changes)  # noqa: E731
            return carry_out(session, app, verb, found, refused, revive, lambda job: str(job.state.value))
        discard: Callable[[str], DeadLetter] = lambda one: app.dead.discard(one, by=me())  # noqa: E731
        return carry_out(session, app, verb, found, refused, discard, lambda letter: "discarded")
