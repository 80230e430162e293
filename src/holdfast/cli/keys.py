"""`holdfast keys free`: free a unique key that a job holds.

Loaded by main when called.
"""

from __future__ import annotations

import click

from .bulk import confirm
from .completion import complete_queue, complete_task
from .exits import CommandFailed, Exit
from .operate import me
from .parse import counted
from .session import Session, session_options


@click.group()
def keys() -> None:
    """Free a unique key that a job holds."""


@keys.command("free")
@click.argument("key")
@click.option("--queue", "-q", help="Only in this queue.", shell_complete=complete_queue)
@click.option("--task", "-t", help="Only of this task.", shell_complete=complete_task)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@session_options
def free(session: Session, key: str, queue: str | None, task: str | None, yes: bool) -> int:
    """Free KEY, so that the next call with it creates a job. The job that held it continues without it."""
    with session.store() as app:
        confirm(session, f"free key {key!r} in {app.safe_url}?", yes=yes)
        session.announce(app)
        freed = app.keys.free(key, queue=queue, task=task, by=me())
        if session.as_json:
            jobs = [{"id": job.id, "task": job.task, "queue": job.queue, "state": job.state.value} for job in freed]
            session.print.document({"store": app.safe_url, "freed": jobs})
            return Exit.DONE if freed else Exit.NOT_FOUND
    if not freed:
        raise CommandFailed(Exit.NOT_FOUND, f"no job holds the key {key!r}.", "`holdfast jobs key:…` lists its jobs.")
    for job in freed:
        session.print.line(f"{job.id}  {job.task}  {job.state.value}")
    session.print.note(f"freed {key!r}: {counted(len(freed), 'jobs')} held it.")
    return Exit.DONE
