"""`holdfast cron ls | show | add | rm | pause | resume | run | next | backfill`: entries that create jobs on schedule.

Loaded by main when called. With --app it can show which declared entries this code no longer has.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

import click

from ..cron.api import Entry, upcoming
from ..cron.entry import CatchUp, CronOptions, Overlap, placed, wanted_entry
from ..records import NewJob
from .bulk import confirm
from .documents import entry_document, plain
from .enqueue import find_callee
from .exits import Exit
from .operate import me
from .parse import Duration, Moment, ago, counted, iso, read_arguments
from .session import Command, Session, lists, session_options

if TYPE_CHECKING:
    from ..app import Holdfast


@click.group(invoke_without_command=True)
@session_options
@click.pass_context
def cron(ctx: click.Context, session: Session) -> int:
    """List, show, add and change cron entries: schedules that enqueue jobs."""
    return _list(session) if lists(ctx) else Exit.DONE


@cron.command("ls")
@session_options
def ls(session: Session) -> int:
    """List cron entries. With --app, entries declared by code that the app no longer has are marked."""
    return _list(session)


def _list(session: Session) -> int:
    with session.store() as app:
        found = app.cron.list()
        now = app.now().timestamp()
    in_code = _names(session)
    if session.as_json:
        session.print.document({"entries": [entry_document(entry, _is_in_code(entry, in_code)) for entry in found]})
        return Exit.DONE
    session.print.table(
        ("entry", "next", "last", "when", "task", "fired", "skipped", "note"),
        [
            (
                entry.name,
                "ended" if entry.ended else ago(entry.next_at, now),
                ago(entry.last_at, now),
                entry.when,
                entry.task,
                str(entry.fired or ""),
                str(entry.skipped or ""),
                _note(entry, _is_in_code(entry, in_code), now),
            )
            for entry in found
        ],
        empty="no cron entries. A worker stores those that its code declares when it starts.",
        whole=3,  # the times stay whole even on a narrow terminal: readers look for them
    )
    return Exit.DONE


@cron.command("show")
@click.argument("name")
@session_options
def show(session: Session, name: str) -> int:
    """Show one entry and its next ticks."""
    with session.store() as app:
        entry = app.cron.get(name)
        upcoming = app.cron.next(name)
        now = app.now().timestamp()
    in_code = _is_in_code(entry, _names(session))
    if session.as_json:
        ticks = [iso(at.timestamp()) for at in upcoming]
        session.print.document({"entry": {**entry_document(entry, in_code), "next": ticks}})
        return Exit.DONE
    declared = f"by code, {ago(entry.declared_at, now)}" if entry.declared else "no, added at run time"
    session.print.fields(
        [
            ("entry", entry.name),
            ("when", entry.when),
            ("task", entry.task),
            ("queue", entry.queue),
            ("arguments", json.dumps(plain(entry.args), ensure_ascii=False, default=str)),
            ("overlap", entry.overlap),
            ("catch up", entry.catch_up),
            ("jitter", f"{entry.jitter:g} s" if entry.jitter else None),
            ("offset", None if entry.offset is None else f"{entry.offset:g} s"),
            ("skip", ", ".join(entry.skip) or None),
            ("start", None if entry.starts_at is None else iso(entry.starts_at.timestamp())),
            ("end", None if entry.ends_at is None else iso(entry.ends_at.timestamp())),
            ("ticks", f"{entry.fired}{f' of {entry.ticks}' if entry.ticks else ''} fired, {entry.skipped} skipped"),
            ("last", ago(entry.last_at, now)),
            ("last job", entry.last_job),
            ("declared", declared),
            ("note", _note(entry, in_code, now)),
        ]
    )
    if upcoming:
        session.print.heading("next")
        for at in upcoming:
            session.print.line(f"  {iso(at.timestamp())}  {ago(at, now)}")
    return Exit.DONE


def _names(session: Session) -> frozenset[str] | None:
    """Names of the entries that the app's code declares; None if no app was given."""
    if not session.has_code:
        return None
    session.code.import_tasks()
    return frozenset(entry.name for entry in session.code._cron_entries())


def _is_in_code(entry: Entry, names: frozenset[str] | None) -> bool | None:
    return None if names is None or not entry.declared else entry.name in names


def _note(entry: Entry, in_code: bool | None, now: float) -> str:
    notes = ["ended"] if entry.ended else []
    if entry.paused_at is not None:
        by = f" by {entry.paused_by}" if entry.paused_by else ""
        reason = f": {entry.pause_reason}" if entry.pause_reason else ""
        notes.append(f"paused{by} {ago(entry.paused_at, now)}{reason}")
    if in_code is False:
        notes.append("not in this code")
    if not entry.declared:
        notes.append("added at run time")
    return ", ".join(notes)


# ---------------------------------------------------------------------- adding


def _timing(command: Command) -> Command:
    for option in (
        click.option(
            "--jitter", type=Duration(), metavar="DURATION", help="Delay each job by a random time up to this."
        ),
        click.option(
            "--skip", multiple=True, metavar="DAY", help="No tick on this day: SAT, or 2030-12-25. May be repeated."
        ),
        click.option(
            "--offset",
            type=Duration(),
            metavar="DURATION",
            help="Tick this much after --cron says; with --every, at this point of each interval by the clock.",
        ),
        click.option("--ticks", type=click.IntRange(1), metavar="N", help="End after N ticks have fired."),
        click.option("--end", type=Moment(), metavar="TIME", help="No tick after this time, ISO 8601."),
        click.option(
            "--start", type=Moment(), metavar="TIME", help="No tick before this time; --every counts from it."
        ),
        click.option("--window", type=Duration(), metavar="DURATION", help="How far back --catch-up all goes. [1d]"),
        click.option("--catch-up", type=click.Choice(get_args(CatchUp)), help="Which missed ticks to fire. [last]"),
        click.option(
            "--overlap", type=click.Choice(get_args(Overlap)), help="What to do while its last job is live. [allow]"
        ),
        click.option("--tz", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin. [UTC]"),
        click.option("--every", type=Duration(), metavar="DURATION", help="Interval between ticks, such as 30s."),
        click.option("--cron", "-c", "expression", metavar="EXPRESSION", help='Five fields, such as "*/5 * * * *".'),
    ):
        command = option(command)
    return command


@cron.command("add")
@click.argument("name")
@click.argument("task")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@_timing
@click.option("--args", "document", metavar="JSON", help="All arguments as one JSON object.")
@click.option("--queue", "-q", help="Queue, instead of the task's own.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first.")
@click.option("--dry-run", is_flag=True, help="Show what would be stored; store nothing.")
@session_options
def add(
    session: Session,
    name: str,
    task: str,
    arguments: tuple[str, ...],
    document: str | None,
    queue: str | None,
    priority: int | None,
    dry_run: bool,
    expression: str | None,
    **timing: Any,
) -> int:
    """Add or change entry NAME, which enqueues jobs of TASK. Workers that serve its queue fire it.

    NAME=VALUE are the task's arguments, as for `holdfast enqueue`.
    """
    settings = {name: value for name, value in timing.items() if value not in (None, ())}
    options = CronOptions(cron=expression, **settings)
    chosen = {key: value for key, value in {"queue": queue, "priority": priority}.items() if value is not None}
    with session.producer() as app:
        target, text_fields = find_callee(app, task, chosen, with_code=session.has_code)
        call = target.bind(**read_arguments(arguments, document, text_fields))
        if dry_run:
            return session.would(f"store entry {name!r}", {"next": _upcoming(options, 5, datetime.now(UTC))})
        session.announce(app)
        entry = app.cron.add(name, call, expression, **settings)
        now = app.now().timestamp()
        if session.as_json:
            session.print.document({"store": app.safe_url, "entry": entry_document(entry, None)})
            return Exit.DONE
    session.print.line(f"entry {name!r}: {entry.when}, next {ago(entry.next_at, now) or 'never'}.")
    return Exit.DONE


@cron.command("rm")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@session_options
def rm(session: Session, name: str, dry_run: bool, yes: bool) -> int:
    """Remove an entry. If code declares it, the next worker that starts adds it again."""
    with session.store() as app:
        entry = app.cron.get(name)
        if dry_run:
            return session.would(f"remove entry {name!r}", {"entry": entry_document(entry, None)})
        confirm(session, f"remove cron entry {name!r} of {app.safe_url}?", yes=yes)
        session.announce(app)
        removed = app.cron.remove(name)
        if session.as_json:
            session.print.document({"store": app.safe_url, "removed": entry_document(removed, None)})
            return Exit.DONE
    session.print.line(f"removed entry {name!r}.")
    if removed.declared:
        session.print.note("it was declared by code: a worker that starts with that code stores it again.")
    return Exit.DONE


# ---------------------------------------------------------------------- changing


@cron.command("pause")
@click.argument("name")
@click.option("--reason", "-r", default="", help="Shown with the pause.")
@session_options
def pause(session: Session, name: str, reason: str) -> int:
    """Fire no tick of the entry until it is resumed. Existing jobs still run."""
    with session.store() as app:
        session.announce(app)
        return _changed(session, app, app.cron.pause(name, reason=reason, by=me()), f"paused entry {name!r}.")


@cron.command("resume")
@click.argument("name")
@session_options
def resume(session: Session, name: str) -> int:
    """Resume at the next future tick. Ticks missed while paused are not fired; use `backfill` for those."""
    with session.store() as app:
        session.announce(app)
        entry = app.cron.resume(name)
        now = app.now().timestamp()
        return _changed(session, app, entry, f"resumed entry {name!r}, next {ago(entry.next_at, now) or 'never'}.")


def _changed(session: Session, app: Holdfast, entry: Entry, text: str) -> int:
    if session.as_json:
        session.print.document({"store": app.safe_url, "entry": entry_document(entry, None)})
    else:
        session.print.line(text)
    return Exit.DONE


@cron.command("run")
@click.argument("name")
@session_options
def run(session: Session, name: str) -> int:
    """Enqueue a job of the entry now, in addition to its ticks, and print its id."""
    with session.store() as app:
        session.announce(app)
        job = app.cron.run_now(name)
        if session.as_json:
            session.print.document({"store": app.safe_url, "id": job.id, "created": job.created})
        else:
            session.print.line(job.id)
            if not job.created:
                session.print.note(f"kept: this job already exists ({job.state.value}).")
    return Exit.DONE


@cron.command("next")
@click.argument("what", metavar="NAME|EXPRESSION")
@click.option("--count", "-n", default=5, show_default=True, type=click.IntRange(1, 1000), help="Show N ticks.")
@click.option("--tz", metavar="ZONE", help="Time zone of an EXPRESSION, such as Europe/Berlin. [UTC]")
@session_options
def next_(session: Session, what: str, count: int, tz: str | None) -> int:
    """Show the next ticks of an entry or of an expression: `holdfast cron next "0 9 * * MON-FRI"`."""
    if " " in what.strip() or what.startswith("@"):
        options = CronOptions(cron=what, tz=tz or "UTC")
        ticks = _upcoming(options, count, datetime.now(UTC))
    else:
        if tz is not None:
            raise click.UsageError("--tz goes with an expression; an entry has its own.")
        with session.store() as app:
            ticks = [iso(at.timestamp()) or "" for at in app.cron.next(what, count)]
    if session.as_json:
        session.print.document({"next": ticks})
        return Exit.DONE
    for at in ticks:
        session.print.line(at)
    if not ticks:
        session.print.note("no next tick: the entry is paused or has ended.")
    return Exit.DONE


def _upcoming(options: CronOptions, count: int, now: datetime) -> list[str]:
    """The ticks of an entry that is not stored."""
    wanted = wanted_entry("preview", NewJob(id="", task="preview"), options, declared=False)
    return [iso(tick) or "" for tick in upcoming(placed(wanted, None, now.timestamp()), count)]


@cron.command("backfill")
@click.argument("name")
@click.option("--from", "start", type=Moment(), required=True, metavar="TIME", help="From this time on, ISO 8601.")
@click.option("--to", "end", type=Moment(), required=True, metavar="TIME", help="Before this time.")
@click.option("--dry-run", is_flag=True, help="Show which ticks have no job; enqueue none.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@session_options
def backfill(session: Session, name: str, start: datetime, end: datetime, dry_run: bool, yes: bool) -> int:
    """Enqueue jobs for past ticks that have none. Safe to repeat while finished jobs are remembered."""
    with session.store() as app:
        planned = app.cron.backfill(name, start, end, dry_run=True)
        missing = sum(tick.created for tick in planned)
        if not dry_run:
            confirm(session, f"enqueue {counted(missing, 'jobs')} of entry {name!r} in {app.safe_url}?", yes=yes)
            session.announce(app)
            planned = app.cron.backfill(name, start, end)
    made = [{"at": iso(tick.at.timestamp()), "id": tick.id, "created": tick.created} for tick in planned]
    if session.as_json:
        session.print.document({"dry_run": dry_run, "ticks": made})
        return Exit.DONE
    for tick in made:
        session.print.line(f"{tick['at']}  {tick['id'] if tick['created'] else 'has its job'}")
    verb = "would enqueue" if dry_run else "enqueued"
    session.print.note(
        f"{verb} {counted(sum(tick.created for tick in planned), 'jobs')} for {counted(len(planned), 'ticks')}."
    )
    return Exit.DONE
