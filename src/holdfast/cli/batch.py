"""`holdfast batch`: the jobs of a batch by state, and closing or cancelling it.

Loaded by main when it is called. Changes jobs only with --close or --cancel.
"""

from __future__ import annotations

import click

from .exits import Exit
from .operate import me
from .parse import counted
from .session import Session, find_id, session_options


@click.command()
@click.argument("id")
@click.option("--close", is_flag=True, help="Close it: it finishes when its jobs have.")
@click.option("--cancel", is_flag=True, help="Close it, and cancel its jobs that have not finished.")
@session_options
def batch(session: Session, id: str, close: bool, cancel: bool) -> int:
    """Show the jobs of a batch by state.

    ID is that of the batch, or a beginning or end of it that no other job has.
    """
    if close and cancel:
        raise click.UsageError("give either --close or --cancel.")
    with session.store() as app:
        found = app.find_batch(find_id(app, id))
        if close:
            found.close()
        done = found.cancel(by=me()) if cancel else None
        status = found.status()
    counts = {state.value: count for state, count in status.counts.items()}
    if session.as_json:
        facts = {"id": status.id, "name": status.name, "open": status.open, "finished": status.finished}
        more = {"total": status.total, "failed": status.failed, "progress": status.progress, "counts": counts}
        session.print.document({**facts, **more, **({} if done is None else {"cancelled": done})})
        return Exit.DONE
    if done is not None:
        session.print.line(f"{done} cancelled")
    state = "finished" if status.finished else "open" if status.open else "closed"
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    named = f"{status.name}  " if status.name else ""
    session.print.line(f"{named}{status.id}  {state}")
    session.print.line(
        f"{counted(status.total, 'jobs')}, {status.progress:.0%} finished{': ' if listed else ''}{listed}"
    )
    return Exit.DONE
