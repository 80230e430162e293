"""`holdfast queues`, `groups`, `group`, `pause`, `resume`: the lanes and their order.

Loaded by main when one of them is called.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable, Mapping

import click

from ..lifecycle import State
from ..operations import make_pause
from ..records import Pause
from .documents import group_document, job_document, pause_document, queue_document
from .exits import CommandFailed, Exit
from .session import Command, Session, session_options
from .spelling import ago, nearest


@click.command()
@session_options
def queues(session: Session) -> int:
    """List queues: their rule for groups, their pause, their jobs by state."""
    with session.store() as app:
        found = list(app.queues.list())
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"queues": [queue_document(queue) for queue in found]})
        return Exit.DONE
    session.print.table(
        ("queue", "groups", *(state.value for state in State), "oldest", "note"),
        [
            (
                queue.name,
                f"{queue.group_order} {queue.group_limit}",
                *_numbers(queue.counts, State),
                ago(queue.oldest_due_at, now),
                _pause_note(queue.pause),
            )
            for queue in found
        ],
        empty="no queues yet.",
    )
    return Exit.DONE


@click.command()
@click.argument("queue", required=False)
@click.option("--limit", "-n", default=100, show_default=True, type=click.IntRange(1), help="At most so many.")
@session_options
def groups(session: Session, queue: str | None, limit: int) -> int:
    """List groups with unfinished jobs, an override or a pause."""
    with session.store() as app:
        if queue is not None:
            _check_queue(queue, [record.name for record in app.queues.list()])
        found = app.groups.list(queue, limit=limit)
    if session.as_json:
        session.print.document({"groups": [group_document(group) for group in found]})
        return Exit.DONE
    live = (State.RUNNING, State.READY, State.SCHEDULED, State.WAITING)
    session.print.table(
        ("queue", "group", "limit", *(state.value for state in live), "head", "note"),
        [
            (
                group.queue,
                group.name,
                str(group.limit),
                *_numbers(group.counts, live),
                group.head or "",
                _pause_note(group.pause) or (f"override {group.override}" if group.override is not None else ""),
            )
            for group in found
        ],
        empty="no group has anything to do.",
        whole=2,
    )
    return Exit.DONE


def _numbers(counts: Mapping[str, int], states: Iterable[State]) -> tuple[str, ...]:
    return tuple(str(counts.get(state.value) or "") for state in states)


def _pause_note(pause: Pause | None) -> str:
    if pause is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    return f"paused{by}{': ' + pause.reason if pause.reason else ''}"


def _check_queue(queue: str, known: list[str]) -> None:
    if queue not in known:
        listed = nearest(queue, known) or (f" Queues: {', '.join(known[:8])}." if known else " There are none yet.")
        raise CommandFailed(Exit.NOT_FOUND, f"there is no queue {queue!r}.{listed}")


@click.command()
@click.argument("queue")
@click.argument("name")
@click.option("--limit", "-n", type=click.IntRange(1), help="Let so many of its jobs run at once.")
@click.option("--no-limit", is_flag=True, help="Drop the override: back to the queue's rule.")
@session_options
def group(session: Session, queue: str, name: str, limit: int | None, no_limit: bool) -> int:
    """Show group NAME of QUEUE, or override its limit."""
    if limit is not None and no_limit:
        raise click.UsageError("--limit and --no-limit exclude each other.")
    with session.store() as app:
        _check_queue(queue, [record.name for record in app.queues.list()])
        if limit is not None or no_limit:
            session.announce(app)
            app.groups.limit(queue, name, limit)
        found = app.groups.get(queue, name)
        members = list(app.jobs(queue=queue, group=name, limit=20))
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"group": group_document(found), "jobs": [job_document(job) for job in members]})
        return Exit.DONE
    override = f" (override {found.override})" if found.override is not None else ""
    session.print.fields(
        [
            ("queue", found.queue),
            ("group", found.name),
            ("order", found.order),
            ("limit", f"{found.limit}{override}"),
            ("pause", _pause_note(found.pause)),
            ("head", found.head),
            ("unfinished", ", ".join(f"{number} {state}" for state, number in found.counts.items()) or "none"),
        ]
    )
    session.print.heading("its newest jobs")
    session.print.table(
        ("id", "state", "task", "tries", "created"),
        [(job.id, job.state.value, job.task, str(job.attempts), ago(job.created_at, now)) for job in members],
        empty="no job of this group is known.",
    )
    return Exit.DONE


def _what(command: Command) -> Command:
    for option in (
        click.option("--task", "-t", metavar="TASK", help="A task, in all queues."),
        click.option("--group", "-g", metavar="GROUP", help="A group of the queue."),
        click.option("--queue", "-q", metavar="QUEUE", help="A queue, or the queue of --group."),
    ):
        command = option(command)
    return command


def _told(pause: Pause) -> str:
    if pause.task is not None:
        return f"task {pause.task!r}"
    return f"queue {pause.queue!r}" if pause.group is None else f"group {pause.group!r} of queue {pause.queue!r}"


@click.command()
@_what
@click.option("--reason", "-r", default="", help="Shown to whoever asks why nothing runs.")
@session_options
def pause(session: Session, queue: str | None, group: str | None, task: str | None, reason: str) -> int:
    """Pause a queue, a group or a task: nothing of it starts until resume. Running jobs end normally."""
    _one_thing(queue, group, task)
    wanted = make_pause(queue, group, task, reason, _me())
    with session.store() as app:
        session.announce(app)
        app.pause(queue=queue, group=group, task=task, reason=reason, by=wanted.by)
        if session.as_json:
            session.print.document({"store": app.safe_url, "paused": pause_document(wanted)})
        else:
            session.print.line(f"paused {_told(wanted)}.")
    return Exit.DONE


@click.command()
@_what
@session_options
def resume(session: Session, queue: str | None, group: str | None, task: str | None) -> int:
    """End a pause."""
    _one_thing(queue, group, task)
    wanted = make_pause(queue, group, task)
    with session.store() as app:
        session.announce(app)
        was = app.resume(queue=queue, group=group, task=task)
        if session.as_json:
            session.print.document({"store": app.safe_url, "resumed": was})
        else:
            session.print.line(f"resumed {_told(wanted)}." if was else f"{_told(wanted)} was not paused.")
    return Exit.DONE


def _one_thing(queue: str | None, group: str | None, task: str | None) -> None:
    if (queue is None) == (task is None) or (group is not None and queue is None):
        raise click.UsageError("say what: --queue QUEUE, or --queue QUEUE --group GROUP, or --task TASK.")


def _me() -> str:
    """Who pauses, for those who wonder later."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may know no user of this number
        return socket.gethostname()
