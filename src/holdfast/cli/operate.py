"""`holdfast cancel`, `retry`, `run-now`, `bury`, `delete`, `reschedule`, `edit`, `pause`, `resume`: operators' verbs.

Loaded by main when one of them is called. Each job is its own step in the store; the store decides whether a verb is
allowed, not this module.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..bulk import BulkSettings
from ..edits import EditSettings, encoded
from ..lifecycle import State
from ..operator import make_pause
from ..records import Pause
from .bulk import bulk_options, carry_out, preview, resolve, run_bulk
from .completion import complete_queue, complete_task
from .documents import pause_document
from .exits import Exit
from .jobs import QUERY_HELP
from .parse import Duration, Moment, read_arguments
from .session import Command, Session, find_id, queue_hint, session_options, task_hint

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..job import Job

Act = Callable[["Holdfast", str], "Job[Any]"]


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", "-r", default="", help="Kept in the job's timeline.")
@bulk_options
@session_options
def cancel(session: Session, reason: str, **asked: Any) -> int:
    """Cancel jobs: unstarted ones at once, running ones as soon as their handler stops."""
    act: Act = lambda app, one: app.cancel(one, reason=reason, by=me())  # noqa: E731
    return _change(session, "cancel", act, {"reason": reason}, **asked)


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@bulk_options
@session_options
def retry(session: Session, **asked: Any) -> int:
    """Run finished jobs again with fresh budgets; a dead one is revived.

    A --query without a state means dead jobs.
    """
    return _change(session, "retry", lambda app, one: app.retry(one, by=me()), **asked)


@click.command("run-now", epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@bulk_options
@session_options
def run_now(session: Session, **asked: Any) -> int:
    """Make scheduled jobs due now."""
    return _change(session, "run-now", lambda app, one: app.run_now(one, by=me()), **asked)


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", "-r", default="", help="Kept with the dead letter.")
@bulk_options
@session_options
def bury(session: Session, reason: str, **asked: Any) -> int:
    """Turn jobs that have not started into dead letters."""
    return _change(session, "bury", lambda app, one: app.bury(one, reason, by=me()), {"reason": reason}, **asked)


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@bulk_options
@session_options
def delete(session: Session, **asked: Any) -> int:
    """Remove jobs that are not running, with everything stored about them.

    Their ids are remembered for ten minutes. A --query without a state means every state but running.
    """
    return _change(session, "delete", lambda app, one: app.delete(one, by=me()), **asked)


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--at", type=Moment(), metavar="TIME", help="Due at this time, ISO 8601; local without an offset.")
@click.option("--delay", type=Duration(), metavar="DURATION", help="Due after this time, such as 90s or 2h; 0 is now.")
@bulk_options
@session_options
def reschedule(session: Session, at: datetime | None, delay: float | None, **asked: Any) -> int:
    """Change the due time of jobs that have not started."""
    if (at is None) == (delay is None):
        raise click.UsageError("say when: --at TIME or --delay DURATION.")
    act: Act = lambda app, one: app.reschedule(one, at=at, delay=delay, by=me())  # noqa: E731
    when: BulkSettings = {"at": at} if at is not None else {"delay": delay}
    return _change(session, "reschedule", act, when, **asked)


@click.command(epilog=QUERY_HELP)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--args", "document", metavar="JSON", help="All arguments as one JSON object; --app checks them.")
@click.option("--queue", metavar="QUEUE", help="Move it to this queue.")
@click.option("--group", help="Move it to this group.")
@click.option("--no-group", is_flag=True, help="Take it out of its group.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first.")
@click.option("--order", type=int, help="Its place among the jobs of its group: lower ones go first.")
@click.option("--no-order", is_flag=True, help="Give it no order: it goes before those with one.")
@bulk_options
@session_options
def edit(session: Session, **asked: Any) -> int:
    """Change jobs that have not started: their arguments, queue, group, priority or order.

    A job that was claimed meanwhile is refused. `reschedule` changes the due time.
    """
    changes = read_changes(asked)
    if not changes:
        raise click.UsageError(
            "say what to change: --args, --queue, --group, --no-group, --priority, --order or --no-order."
        )
    return _change(session, "edit", editing(session, changes), bulk_settings(changes), **asked)


def read_changes(asked: dict[str, Any]) -> EditSettings:
    """Take what is to be changed out of a command's options."""
    document, group, alone = asked.pop("document"), asked.pop("group"), asked.pop("no_group")
    order, unordered = asked.pop("order"), asked.pop("no_order")
    for name, given, without in (("group", group, alone), ("order", order, unordered)):
        if given is not None and without:
            raise click.UsageError(f"--{name} and --no-{name} exclude each other.")
    changes: EditSettings = {}
    if document is not None:
        changes["args"] = read_arguments((), document, frozenset())
    if group is not None or alone:
        changes["group"] = group
    if (queue := asked.pop("queue")) is not None:
        changes["queue"] = queue
    if (priority := asked.pop("priority")) is not None:
        changes["priority"] = priority
    if order is not None or unordered:
        changes["order"] = order
    return changes


def bulk_settings(changes: EditSettings) -> BulkSettings:
    """The same changes, of every job that matches."""
    return BulkSettings(**changes)  # type: ignore[typeddict-item]


def editing(session: Session, changes: EditSettings) -> Act:
    """The edit of one job; with --app its new arguments are checked against the task's function first."""

    def act(app: Holdfast, one: str) -> Job[Any]:
        if session.has_code and "args" in changes:
            session.code.import_tasks()
            encoded(session.code, app.job(one).task, changes["args"])
        return app.edit(one, by=me(), **changes)

    return act


def _change(
    session: Session,
    verb: str,
    act: Act,
    settings: BulkSettings | None = None,
    *,
    ids: tuple[str, ...],
    query: str | None,
    **asked: Any,
) -> int:
    """One verb on jobs given by id, or on all that match a query."""
    if bool(ids) == (query is not None):
        raise click.UsageError("give ids, or --query; one of the two.")
    with session.store() as app:
        if query is not None:
            return run_bulk(session, app, verb, query, {"by": me(), **(settings or {})}, **asked)
        became: Callable[[Job[Any]], str] = (lambda _: "deleted") if verb == "delete" else _became
        found, refused = resolve(app, ids, find_id)
        if asked["dry_run"]:
            return preview(session, verb, found, refused)
        session.announce(app)
        return carry_out(session, app, verb, found, refused, lambda one: act(app, one), became)


def _became(job: Job[Any]) -> str:
    """The result for one job."""
    running = job.state is State.RUNNING and job.cancel_requested
    return "running, asked to stop" if running else job.state.value


# ----------------------------------------------------------------------------------------------------------------------
# Pausing and resuming a queue, a group or a task. `queues pause` and `queues resume` use this, too.


def _what(command: Command) -> Command:
    for option in (
        click.option("--task", "-t", metavar="TASK", help="A task, in all queues.", shell_complete=complete_task),
        click.option("--group", "-g", metavar="GROUP", help="A group of the queue."),
        click.option(
            "--queue", "-q", metavar="QUEUE", help="A queue, or the queue of --group.", shell_complete=complete_queue
        ),
    ):
        command = option(command)
    return command


def _named(pause: Pause) -> str:
    if pause.task is not None:
        return f"task {pause.task!r}"
    return f"queue {pause.queue!r}" if pause.group is None else f"group {pause.group!r} of queue {pause.queue!r}"


def _going(pause: Pause) -> str:
    whole_queue = pause.task is None and pause.group is None
    return "neither paused nor slowed down" if whole_queue else "not paused"


@click.command()
@_what
@click.option("--reason", "-r", default="", help="Shown with the pause.")
@session_options
def pause(session: Session, queue: str | None, group: str | None, task: str | None, reason: str) -> int:
    """Pause a queue, a group or a task: none of its jobs start until resume. Running jobs end normally."""
    _one_thing(queue, group, task)
    return pause_it(session, make_pause(queue, group, task, reason, me()))


@click.command()
@_what
@click.option("--skip-dead", is_flag=True, help="Let a group continue without the dead job that stops it.")
@session_options
def resume(session: Session, queue: str | None, group: str | None, task: str | None, skip_dead: bool) -> int:
    """End a pause; for a queue, its slow-down as well; for a group, with --skip-dead, its stop by a dead job."""
    _one_thing(queue, group, task)
    if skip_dead and group is None:
        raise click.UsageError("--skip-dead applies to one group: give --queue QUEUE --group GROUP.")
    return resume_it(session, make_pause(queue, group, task), skip_dead=skip_dead)


def pause_it(session: Session, wanted: Pause) -> int:
    """Pause it, and report that."""
    with session.store() as app:
        session.announce(app)
        hint = queue_hint(app, wanted.queue) if wanted.task is None else task_hint(app, wanted.task)
        app.pause(queue=wanted.queue, group=wanted.group, task=wanted.task, reason=wanted.reason, by=wanted.by)
        if session.as_json:
            session.print.document({"store": app.safe_url, "paused": pause_document(wanted)})
        else:
            session.print.line(f"paused {_named(wanted)}.")
            if hint:
                session.print.note(hint)
    return Exit.DONE


def resume_it(session: Session, wanted: Pause, *, skip_dead: bool = False) -> int:
    """End its pause, slow-down or stop, and report whether there was one."""
    with session.store() as app:
        session.announce(app)
        was = app.resume(queue=wanted.queue, group=wanted.group, task=wanted.task, skip_dead=skip_dead)
        if session.as_json:
            session.print.document({"store": app.safe_url, "resumed": was})
            return Exit.DONE
        session.print.line(f"resumed {_named(wanted)}." if was else f"{_named(wanted)} was {_going(wanted)}.")
        if wanted.queue is not None and wanted.group is not None:
            dead = app.groups.get(wanted.queue, wanted.group).stopped_by
            if dead is not None:
                session.print.note(f"it is stopped by dead job {dead}: revive or discard that job, or add --skip-dead.")
    return Exit.DONE


def _one_thing(queue: str | None, group: str | None, task: str | None) -> None:
    if (queue is None) == (task is None) or (group is not None and queue is None):
        raise click.UsageError("name one: --queue QUEUE, --queue QUEUE --group GROUP, or --task TASK.")


def me() -> str:
    """Who pauses, for the record."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # in a container, this uid may have no name
        return socket.gethostname()
