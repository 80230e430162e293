"""`holdfast jobs`, `job`, `explain`, `workers`, `stats`: read-only commands.

Loaded by main when one of them is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..errors import command_of
from ..job import PAGE_MAX, Job, Page
from ..lifecycle import UNSTARTED, State
from ..names import nearest
from ..queries import make_query
from ..queries.pages import GROUPINGS
from ..records import SORTS
from .completion import complete_query
from .documents import history_document, job_document, plain, queue_document, relatives_document, step_document
from .exits import Exit
from .parse import Duration, ago, iso, tries
from .session import Session, find_id, queue_hint, session_options, task_hint, without_ls

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..dependencies import Relatives
    from ..inspection import HistoryEntry
    from ..records import Seal
    from ..steps import Step

LETTERS_COUNTED_MAX = 100_000
VALUE_CHARS_MAX = 200  # of a step's value; --json has all of it
QUERY_HELP = (
    "QUERY: states and conditions that must all hold, such as `dead`, `live queue:mail`, `task:send_* -group:ann`, "
    "`args.user.id:42`, `error:Timeout age:>1h attempts:>3`; an id by its beginning or end."
)
COLUMNS: Mapping[str, Callable[[Job[Any], float], str]] = {
    "id": lambda job, now: job.id,
    "state": lambda job, now: job.state.value,
    "task": lambda job, now: job.task,
    "queue": lambda job, now: job.queue,
    "group": lambda job, now: job.group or "",
    "tries": lambda job, now: str(tries(job)),
    "when": lambda job, now: ago(_moment(job), now),
    "note": lambda job, now: _note(job),
    "key": lambda job, now: job.key or "",
    "priority": lambda job, now: str(job.priority),
    "failures": lambda job, now: str(job.failures),
    "stalls": lambda job, now: str(job.stalls),
    "created": lambda job, now: ago(job.created_at, now),
    "due": lambda job, now: _due(job, now),
    "started": lambda job, now: ago(job.started_at, now),
    "finished": lambda job, now: ago(job.finished_at, now),
    "worker": lambda job, now: job.worker or "",
    "reason": lambda job, now: job.reason or "",
    "error": lambda job, now: f"{job.errors[-1].type} {job.errors[-1].text}".strip() if job.errors else "",
    "args": lambda job, now: json.dumps(plain(job.args), ensure_ascii=False, default=str),
}
COLUMNS_SHOWN = ("id", "state", "task", "queue", "group", "tries", "when", "note")


@click.command(epilog=QUERY_HELP)
@click.argument("query", nargs=-1, shell_complete=complete_query)
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="Show at most N.")
@click.option("--sort", metavar="WHAT", help=f"{', '.join(SORTS)}. [created]")
@click.option("--after", metavar="POSITION", help="Continue a list at the position where it ended.")
@click.option("--columns", metavar="NAMES", help=f"Which to show, separated by commas: {', '.join(COLUMNS)}.")
@click.option("--count", "counting", is_flag=True, help="Only count them, up to 10,000.")
@click.option("--group-by", metavar="WHAT", help=f"Count them by {', '.join(GROUPINGS)}.")
@session_options
def jobs(
    session: Session,
    query: tuple[str, ...],
    limit: int,
    sort: str | None,
    after: str | None,
    columns: str | None,
    counting: bool,
    group_by: str | None,
) -> int:
    """List jobs, newest first; or count them."""
    shown = _columns(columns)
    text = " ".join(without_ls(query))
    with session.store() as app:
        if counting or group_by is not None:
            return _count(session, app, text, group_by)
        found, page = _read(app, text, sort, after, limit)
        if session.as_json:
            documents = [job_document(job) for job in found]
            facts = {"after": page.after, "scanned": page.scanned, "sorted_all": page.sorted_all}
            session.print.document({"jobs": documents, **facts})
            return Exit.DONE
        now = app.now().timestamp()
        if found or page.after is None:
            session.print.table(
                shown,
                [[COLUMNS[name](job, now) for name in shown] for job in found],
                empty="no jobs match." if query else "no jobs yet.",
                whole=2 if shown[:2] == ("id", "state") else 1,
                ids=shown[0] == "id",
            )
        _say_what_was_seen(session, app, text, len(found), limit, page)
        if any(job.unreadable for job in found):
            session.print.note("not all fields could be read: `holdfast audit` names them.")
    return Exit.DONE


def _columns(given: str | None) -> tuple[str, ...]:
    names = tuple((given or ",".join(COLUMNS_SHOWN)).split(","))
    for name in names:
        if name not in COLUMNS:
            raise click.UsageError(
                f"there is no column {name!r}.{nearest(name, COLUMNS)} Columns: {', '.join(COLUMNS)}."
            )
    return names


def _read(app: Holdfast, text: str, sort: str | None, after: str | None, limit: int) -> tuple[list[Job[Any]], Page]:
    """Read until the limit, the end, or the bound of a page; a note says which bound ended it."""
    found: list[Job[Any]] = []
    scanned = 0
    while True:
        wanted = min(limit - len(found), PAGE_MAX)
        page = app.jobs(text, sort=sort, limit=wanted, after=after).page()
        found += page.jobs
        scanned += page.scanned
        after = page.after
        if after is None or len(found) >= limit or len(page.jobs) < wanted:
            return found, Page([], after, scanned, page.sorted_all)


def _say_what_was_seen(session: Session, app: Holdfast, text: str, found: int, limit: int, page: Page) -> None:
    if not page.sorted_all:
        session.print.note("sorted among the newest that match, because no index has this order.")
    if page.after is not None and found >= limit:
        session.print.note(f"the first {limit}; --limit shows more, --after {page.after} the next.")
    elif page.after is not None:
        session.print.note(f"looked at {page.scanned:,} jobs; --after {page.after} looks further.")
    elif not found and (hint := _hint(app, text)):
        session.print.note(hint)


def _hint(app: Holdfast, text: str) -> str:
    """What may have been meant where nothing was found: a queue or a task that is not there."""
    query = make_query(text, {})
    if hint := queue_hint(app, query.queue):
        return hint
    task = query.task
    if task is None or "*" in task:
        return ""
    return task_hint(app, task)


def _count(session: Session, app: Holdfast, text: str, group_by: str | None) -> int:
    tally = app.count(text, by=group_by)
    if session.as_json:
        facts = {"total": tally.total, "scanned": tally.scanned, "complete": tally.complete}
        session.print.document(facts if group_by is None else {**facts, "by": group_by, "groups": dict(tally.groups)})
        return Exit.DONE
    more = "" if tally.complete else "+"
    if group_by is None:
        session.print.line(f"{tally.total}{more}")
    else:
        rows = [(name or "(none)", f"{number}{more}") for name, number in tally.groups.items()]
        session.print.table((group_by, "jobs"), rows, empty="no jobs match.")
    if not tally.complete:
        session.print.note(f"looked at {tally.scanned:,} jobs, the newest; there are more.")
    elif not tally.total and (hint := _hint(app, text)):
        session.print.note(hint)
    return Exit.DONE


def _note(job: Job[Any]) -> str:
    if unreadable := job.unreadable:
        return f"cannot be read: {', '.join(unreadable)}"
    if job.state is State.DEAD:
        return job.reason or ""
    if job.waits_for_parents:
        return "waits for its parents"
    if job.cancel_requested:
        return "cancel asked for"
    if job.progress is not None and job.state is State.RUNNING:
        return f"{job.progress:.0%} {job.progress_text or ''}".strip()
    return ""


def _moment(job: Job[Any]) -> datetime | None:
    moments = {State.SCHEDULED: None if job.waits_for_parents else job.due_at, State.RUNNING: job.started_at}
    return job.finished_at if job.state.finished else moments.get(job.state, job.created_at)


@click.command()
@click.argument("id")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show the latest traceback in full.")
@click.option("--follow", "-f", is_flag=True, help="Show log lines and progress until the job has finished.")
@session_options
def job(session: Session, id: str, with_traceback: bool, follow: bool) -> int:
    """Show one job: ID is its id, or a beginning or end of it that no other job has."""
    with session.store() as app:
        if follow:
            return _follow(session, app, find_id(app, id))
        found = app.job(find_id(app, id))
        lines, timeline, related = app.logs(found), app.history(found), app.relatives(found)
        steps = app.steps(found)
        if session.as_json:
            logs = [{"at": iso(line.at), "text": line.text} for line in lines]
            past = [history_document(entry) for entry in timeline]
            document = {"job": job_document(found), **relatives_document(related), "logs": logs, "history": past}
            document["steps"] = list(map(step_document, steps))
            session.print.document(document)
            return Exit.DONE
        now = app.now().timestamp()
    _show_job(session, found, now)
    _show_relatives(session, related)
    _show_steps(session, steps, now)
    session.print.heading("history")
    show_timeline(session, timeline, now)
    if found.errors:
        session.print.heading("errors")
        for error in found.errors:
            text = f"{error.type}: {error.text}" if error.type else error.text
            session.print.line(f"  {ago(error.at, now):>8}  attempt {error.attempt}  {error.reason}  {text}")
        if with_traceback and found.errors[-1].traceback:
            session.print.line(found.errors[-1].traceback.rstrip())
    if lines:
        session.print.heading("log")
        for line in lines:
            session.print.line(f"  {ago(line.at, now):>8}  {line.text}")
    return Exit.DONE


def _show_relatives(session: Session, found: Relatives) -> None:
    """Print what the job waits for, and what waits for it."""
    for name, jobs in (("parents", found.parents), ("children", found.children)):
        if jobs:
            session.print.heading(name)
            rows = [(one.id, one.task, one.state.value) for one in jobs]
            session.print.table(("id", "task", "state"), rows, empty="")
    if found.more:
        session.print.note("there are more than are shown.")


def _show_steps(session: Session, steps: list[Step], now: float) -> None:
    """Print what the job remembers between its attempts."""
    if steps:
        session.print.heading("steps")
        rows = [(str(one.number or ""), one.kind, one.name, ago(one.at, now), _step_value(one, now)) for one in steps]
        session.print.table(("no", "kind", "name", "stored", "value"), rows, empty="")


def _step_value(step: Step, now: float) -> str:
    if step.until is not None and step.value is None:
        return f"{'until' if step.until > now else 'over'} {ago(step.until, now)}"
    text = (step.value or b"").decode(errors="replace")
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def show_timeline(session: Session, found: list[HistoryEntry], now: float) -> None:
    """Print a job's timeline, a line each."""
    for entry in found:
        whom = entry.by or entry.worker or ""
        lease = f"fence {entry.fence}" if entry.fence and entry.kind == "claimed" else ""
        words = [command_of(entry.kind), f"by {whom}" if whom else "", lease, entry.text]
        session.print.line(f"  {ago(entry.at, now):>8}  {'  '.join(word for word in words if word)}")


def _follow(session: Session, app: Holdfast, id: str) -> int:
    """Print what the job does as it happens, a line each (with --json, a document). Returns 1 unless it succeeded."""
    state = None
    for step in app.follow(id):
        state = step.state
        if session.as_json:
            at = None if step.at is None else iso(step.at.timestamp())
            record = {"kind": step.kind, "state": step.state, "text": step.text, "fraction": step.fraction, "at": at}
            session.print.record(record)
        elif step.kind == "log":
            session.print.line(step.text)
        elif step.kind == "progress":
            session.print.line(f"{step.fraction or 0.0:.0%} {step.text}".rstrip())
        else:
            session.print.note(f"{step.state.value}{': ' + step.text if step.text else ''}")
    return Exit.DONE if state is State.SUCCEEDED else Exit.FAILED


def _due(job: Job[Any], now: float) -> str:
    return "after its parents" if job.waits_for_parents else ago(job.due_at, now)


def _show_job(session: Session, job: Job[Any], now: float) -> None:
    progress = "" if job.progress is None else f"{job.progress:.0%} {job.progress_text or ''}"
    tries = f"attempts {job.attempts}, failures {job.failures}, stalls {job.stalls}"
    if job.shared_stalls:
        tries += f", shared stalls {job.shared_stalls}"
    suspect = job.suspect and not job.state.finished
    session.print.fields(
        [
            ("id", job.id),
            ("state", job.state.value),
            ("reason", job.reason),
            ("task", job.task),
            ("queue", job.queue),
            ("group", job.group),
            ("order", None if job.order is None else str(job.order)),
            ("key", job.key),
            ("priority", str(job.priority) if job.priority else None),
            ("arguments", json.dumps(plain(job.args), ensure_ascii=False, default=str)),
            ("headers", json.dumps(job.headers, ensure_ascii=False) if job.headers else None),
            ("tries", tries),
            ("suspect", "its process died; it runs alone next" if suspect else None),
            ("created", ago(job.created_at, now)),
            ("due", _due(job, now) if job.state is State.SCHEDULED else None),
            ("expires", ago(job.expires_at, now) if job.state in UNSTARTED else None),
            ("started", ago(job.started_at, now)),
            ("finished", ago(job.finished_at, now)),
            ("worker", job.worker),
            ("fence", str(job.fence) if job.fence else None),
            ("progress", progress),
            ("cancel", "asked for" if job.cancel_requested and not job.state.finished else None),
            ("value", json.dumps(plain(job.value), ensure_ascii=False, default=str) if job.value is not None else None),
            ("unreadable", ", ".join(job.unreadable)),
        ]
    )


@click.command()
@click.argument("id")
@session_options
def explain(session: Session, id: str) -> int:
    """Explain why a job is in its state, and what must happen for it to run."""
    with session.store() as app:
        explanation = app.explain(find_id(app, id), tasks=session.known_tasks)
    if session.as_json:
        session.print.document({"explanation": plain(explanation)})
        return Exit.DONE
    session.print.fields([("job", explanation.job_id), ("state", explanation.state.value)])
    session.print.line(f"\n{explanation.summary}")
    for sentence in explanation.reasons:
        session.print.line(f"  - {sentence}")
    for sentence in explanation.next:
        session.print.line(f"  > {sentence}")
    return Exit.DONE


@click.command()
@click.option("--by", type=click.Choice(["task", "queue", "worker"]), help="Show statistics by task, queue or worker.")
@click.option("--since", type=Duration(), metavar="DURATION", help="With --by: how far back, such as 15m or 7d. [1h]")
@click.option("--watch", "-w", is_flag=True, help="Repeat it every 2 seconds; by task unless --by is given.")
@session_options
def stats(session: Session, by: str | None, since: float | None, watch: bool) -> int:
    """Show counts of jobs, dead letters and workers; with --by, what ended over time.

    For each task, queue or worker: outcomes, failure rate, and wait and run times.
    """
    by = "task" if by is None and watch else by
    with session.store() as app:
        if by is not None:
            from .history import show_stats

            return show_stats(session, app, by, since or 3600.0, 2.0 if watch else None)
        found = list(app.queues.list())
        counts = app.counts()
        workers = app.workers()
        letters = len(app.dead.list(limit=LETTERS_COUNTED_MAX))
        now = app.now().timestamp()
        target = app.safe_url
        seal = app._do("stats", lambda backend: backend.sealed())
    totals = {state.value: sum(by_state[state] for by_state in counts.values()) for state in State}
    live = [worker for worker in workers if not worker.expired]
    oldest = min((queue.oldest_due_at for queue in found if queue.oldest_due_at is not None), default=None)
    summary = {
        "jobs": totals,
        "dead_letters": letters,
        "workers": len(live),
        "slots": sum(worker.slots for worker in live),
        "busy": sum(worker.running for worker in live),
        "oldest_ready_seconds": None if oldest is None else max(0.0, now - oldest),
        "sealed": None if seal is None or not seal.closed else {"stage": seal.stage, "other": seal.other},
    }
    if session.as_json:
        session.print.document({"store": target, **summary, "queues": [queue_document(queue) for queue in found]})
        return Exit.DONE
    session.print.fields(
        [
            *((name, str(number)) for name, number in totals.items()),
            ("dead letters", str(letters)),
            ("workers", f"{len(live)} live, {summary['busy']} of {summary['slots']} slots busy"),
            ("oldest ready", None if oldest is None else ago(oldest, now)),
            ("sealed", None if seal is None or not seal.closed else _sealed(seal)),
        ]
    )
    return Exit.DONE


def _sealed(seal: Seal) -> str:
    """Why the store takes no jobs."""
    if seal.role == "target":
        return f"its jobs are coming from {seal.other}" if seal.stage == "moving" else "a move into it was given up"
    return f"its jobs {'have moved' if seal.stage == 'moved' else 'are moving'} to {seal.other}"
