"""`holdfast pause`, `resume`: a queue, a group or a task rests. Also what `queues pause` and `queues resume` do.

Loaded by main when one of them is called.
"""

from __future__ import annotations

import getpass
import socket

import click

from ..operations import make_pause
from ..records import Pause
from .documents import pause_document
from .exits import Exit
from .session import Command, Session, session_options


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


def _going(pause: Pause) -> str:
    whole_queue = pause.task is None and pause.group is None
    return "neither paused nor slowed down" if whole_queue else "not paused"


@click.command()
@_what
@click.option("--reason", "-r", default="", help="Shown to whoever asks why nothing runs.")
@session_options
def pause(session: Session, queue: str | None, group: str | None, task: str | None, reason: str) -> int:
    """Pause a queue, a group or a task: nothing of it starts until resume. Running jobs end normally."""
    _one_thing(queue, group, task)
    return pause_it(session, make_pause(queue, group, task, reason, me()))


@click.command()
@_what
@session_options
def resume(session: Session, queue: str | None, group: str | None, task: str | None) -> int:
    """End a pause; of a queue its slow-down, too."""
    _one_thing(queue, group, task)
    return resume_it(session, make_pause(queue, group, task))


def pause_it(session: Session, wanted: Pause) -> int:
    """Pause what is meant, and say so."""
    with session.store() as app:
        session.announce(app)
        app.pause(queue=wanted.queue, group=wanted.group, task=wanted.task, reason=wanted.reason, by=wanted.by)
        if session.as_json:
            session.print.document({"store": app.safe_url, "paused": pause_document(wanted)})
        else:
            session.print.line(f"paused {_told(wanted)}.")
    return Exit.DONE


def resume_it(session: Session, wanted: Pause) -> int:
    """End the pause of what is meant, or the slow-down, and say whether there was one."""
    with session.store() as app:
        session.announce(app)
        was = app.resume(queue=wanted.queue, group=wanted.group, task=wanted.task)
        if session.as_json:
            session.print.document({"store": app.safe_url, "resumed": was})
        else:
            session.print.line(f"resumed {_told(wanted)}." if was else f"{_told(wanted)} was {_going(wanted)}.")
    return Exit.DONE


def _one_thing(queue: str | None, group: str | None, task: str | None) -> None:
    if (queue is None) == (task is None) or (group is not None and queue is None):
        raise click.UsageError("say what: --queue QUEUE, or --queue QUEUE --group GROUP, or --task TASK.")


def me() -> str:
    """Who pauses, for those who wonder later."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may know no user of this number
        return socket.gethostname()
