"""`holdfast flow`: the jobs that `after=` links to one job, as a tree or a graph, and actions on all of them.

Loaded by main when it is called. Changes jobs only with --cancel or --retry-failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .exits import Exit
from .operate import me
from .parse import counted
from .session import Session, find_id, session_options

if TYPE_CHECKING:
    from ..flows import FlowGraph


@click.command()
@click.argument("id")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz: holdfast flow ID --dot | dot -Tsvg > flow.svg")
@click.option("--svg", is_flag=True, help="Print a drawing: holdfast flow ID --svg > flow.svg")
@click.option("--cancel", is_flag=True, help="Cancel all its unfinished jobs.")
@click.option("--retry-failed", is_flag=True, help="Rerun its jobs that died or were cancelled.")
@session_options
def flow(session: Session, id: str, dot: bool, svg: bool, cancel: bool, retry_failed: bool) -> int:
    """Show the jobs that wait for one another.

    ID is any of them: its id, or a beginning or end of it that no other job has.
    """
    if sum((dot, svg, cancel, retry_failed)) > 1:
        raise click.UsageError("give one of --dot, --svg, --cancel and --retry-failed.")
    with session.store() as app:
        run = app.flow(find_id(app, id))
        if cancel or retry_failed:
            done = run.cancel(by=me()) if cancel else run.retry_failed(by=me())
            if session.as_json:
                session.print.document({"done": done})
            else:
                session.print.line(f"{done} {'cancelled' if cancel else 'will run again'}")
            return Exit.DONE
        graph = run.graph()
    if dot or svg:
        session.print.line(graph.dot() if dot else graph.svg())
    elif session.as_json:
        jobs = [{"id": job.id, "task": job.task, "state": job.state.value, "after": job.after} for job in graph.jobs]
        counts = {state.value: count for state, count in graph.counts.items()}
        session.print.document({"jobs": jobs, "counts": counts, "progress": graph.progress, "capped": graph.capped})
    else:
        _show(session, graph)
    return Exit.DONE


def _show(session: Session, graph: FlowGraph) -> None:
    from ..flows import depths

    depth = depths(graph)
    width = max(2 * depth[job.id] + len(job.task) for job in graph.jobs)
    for job in sorted(graph.jobs, key=lambda job: depth[job.id]):
        name = f"{'  ' * depth[job.id]}{job.task}"
        waits = f"  after {', '.join(parent[-8:] for parent in job.after[:4])}" if job.after else ""
        more = f" and {len(job.after) - 4} more" if len(job.after) > 4 else ""
        session.print.line(f"{name:<{width}}  {job.id}  {job.state.value}{waits}{more}")
    counts = ", ".join(f"{count} {state.value}" for state, count in sorted(graph.counts.items()))
    session.print.line(f"{counted(len(graph.jobs), 'jobs')}, {graph.progress:.0%} finished: {counts}")
    if graph.capped:
        session.print.note("there are more jobs than are shown.")
