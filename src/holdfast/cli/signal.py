"""`holdfast signal`: send a signal to a job that waits for it, or will.

Loaded by main when it is called. The store decides whether the job takes it, not this module.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from .documents import job_document
from .exits import Exit
from .operate import me
from .session import Session, find_id, session_options


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("value", required=False)
@session_options
def signal(session: Session, id: str, name: str, value: str | None) -> int:
    """Send a signal to a job: its handler gets the VALUE from ctx.wait_for(NAME).

    VALUE is JSON; what is not JSON is sent as text, and without one the value is null. The first signal of a name
    counts. A job that sleeps until it comes is ready at once.
    """
    with session.store() as app:
        job = app.signal(find_id(app, id), name, _read(value), by=me())
    if session.as_json:
        session.print.document({"job": job_document(job)})
    else:
        session.print.line(f"{job.id}  {job.task}  {job.state.value}")
    return Exit.DONE


def _read(value: str | None) -> Any:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
