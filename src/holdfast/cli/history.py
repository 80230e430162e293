"""`holdfast history`, `watch` and `stats --by`: what happened, and what happens now.

Loaded by main when one of them is called. Read-only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..events import EVENTS, EventsDropped
from .documents import history_document
from .exits import Exit
from .jobs import QUERY_HELP, show_timeline
from .parse import Duration, iso, span
from .session import Session, find_id, session_options

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..events import Event
    from ..inspection import StatLine, Stats

_BESIDE = ("at", "position", "worker", "job_id", "task", "queue", "group", "attempt", "error", "fence")
ID_SHOWN = 8  # on a terminal, the last characters of an id: every command takes them


# ----------------------------------------------------------------------------------------------------------------------
# One job


@click.command()
@click.argument("id")
@session_options
def history(session: Session, id: str) -> int:
    """Show what happened to one job: ID is its id or an unambiguous beginning or ending of it."""
    with session.store() as app:
        found = app.history(find_id(app, id))
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"history": [history_document(entry) for entry in found]})
    else:
        show_timeline(session, found, now)
    return Exit.DONE


# ----------------------------------------------------------------------------------------------------------------------
# Events


@click.command(epilog=QUERY_HELP)
@click.argument("query", required=False)
@click.option("--event", "-e", "names", multiple=True, type=click.Choice(sorted(EVENTS)), help="Only these events.")
@click.option("--since", type=Duration(), default=None, help="Begin with the events of this long ago, such as 15m.")
@click.option("--after", type=int, default=None, help="Begin after this position: the last one seen.")
@session_options
def watch(session: Session, query: str | None, names: tuple[str, ...], since: float | None, after: int | None) -> int:
    """Follow events of all workers and operators, until interrupted.

    QUERY chooses jobs by queue, task, group, worker, state or error: "queue:mail task:send_*".
    """
    with session.store() as app:
        begin = app.now().timestamp() - since if since is not None else None
        start = 0 if begin is not None and after is None else after
        for event in app.watch(query, events=names or None, after=start):
            if begin is None or event.at >= begin or isinstance(event, EventsDropped):
                _show_event(session, event)
    return Exit.DONE


def _show_event(session: Session, event: Event) -> None:
    fields = msgspec.to_builtins(event)
    if session.as_json:
        session.print.record({"event": event.name, **fields, "at": iso(event.at)})
        return
    when = time.strftime("%H:%M:%S", time.localtime(event.at)) if event.at else "        "
    id = fields.get("job_id", "")
    about = [fields.get("task") or "", fields.get("queue") or "", id if session.print.is_piped else id[-ID_SHOWN:]]
    error = fields.get("error") or {}
    rest = [
        f"{name}={f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in fields.items()
        if name not in _BESIDE and value not in (None, "", 0, [], {})
    ]
    failed = f"{error.get('type', '')}: {error.get('text', '')}" if error else ""
    words = [f"{event.name:<10}", *about, failed, *rest]
    session.print.line(f"{when}  {'  '.join(word for word in words if word)}")


# ----------------------------------------------------------------------------------------------------------------------
# Numbers over time


def show_stats(session: Session, app: Holdfast, by: str, since: float, every: float | None) -> int:
    """Print statistics once or, with `every`, again and again until interrupted."""
    console = session.print.console
    while True:
        found = app.stats(by=by, since=since)  # type: ignore[arg-type]
        if session.as_json:
            session.print.record(stats_document(found)) if every else session.print.document(stats_document(found))
        else:
            if every and console.is_terminal:
                console.clear()
                at = time.strftime("%H:%M:%S", found.until.astimezone().timetuple())
                session.print.line(f"{at}  by {by}, the last {span(since)}, every {span(every)}; Ctrl-C ends it\n")
            _print_stats(session, found)
        if every is None:
            return Exit.DONE
        time.sleep(every)


def stats_document(found: Stats) -> dict[str, Any]:
    return {
        "by": found.by,
        "step": found.step,
        "since": iso(found.since.timestamp()),
        "until": iso(found.until.timestamp()),
        "total": _line_document(found.total),
        "lines": [_line_document(line) for line in found.lines],
    }


def _line_document(line: StatLine) -> dict[str, Any]:
    fields = msgspec.to_builtins(line)
    series = [
        {**point, "at": iso(one.at.timestamp())} for point, one in zip(fields["series"], line.series, strict=True)
    ]
    return {**fields, "series": series}


STATS_DROPPED = (12, 5, 8, 3, 2, 11)  # P99, OTHER, WAIT P50, FAILED, OK, RUN P95


def _print_stats(session: Session, found: Stats) -> None:
    columns = (found.by.upper(), "ENDED", "OK", "FAILED", "DEAD", "OTHER", "FAIL %", "PER MIN", "WAIT P50", "WAIT P95")
    session.print.table(
        (*columns, "RUN P50", "RUN P95", "RUN P99"),
        [_stat_row(line, found.seconds) for line in (*found.lines, found.total)] if found.lines else [],
        empty="nothing ended in that time.",
        drop=STATS_DROPPED,
    )


def _stat_row(line: StatLine, seconds: float) -> tuple[str, ...]:
    counts = line.counts
    ok, failed, dead = (counts.get(outcome, 0) for outcome in ("succeeded", "failed", "dead"))
    rate = "" if line.failure_rate is None else f"{100 * line.failure_rate:.1f}"
    per_minute = f"{60 * line.count / seconds:.1f}" if seconds else ""
    numbers = (line.count, ok, failed, dead, line.count - ok - failed - dead)
    times = (line.wait.p50, line.wait.p95, line.run.p50, line.run.p95, line.run.p99)
    return (line.name or "total", *map(str, numbers), rate, per_minute, *map(_short, times))


def _short(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1.0:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120.0 else f"{seconds / 60:.0f} min"
