"""`holdfast jobs`, `job`, `explain`, `workers`, `stats`: read-only commands.

Loaded by main when one of them is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..job import Job
from ..lifecycle import UNSTARTED, State
from ..records import WorkerRecord
from ..worker_status import RunnerView, WorkerStatus, read
from .documents import job_document, plain, queue_document, worker_document
from .exits import Exit
from .parse import ago, counted, iso, short_ids, size, span
from .session import Session, find_id, session_options

if TYPE_CHECKING:
    from ..app import Holdfast

LETTERS_COUNTED_MAX = 100_000
JOBS_LISTED_MAX = 3  # per runner
WORKER_COLUMNS = (
    "worker", "host", "pid", "queues", "busy", "lease", "started", "renewed", "memory", "note", "jobs"
)  # fmt: skip
QUERY_HELP = (
    "QUERY: states and conditions that must all hold, such as `dead`, `live queue:mail`, `state:ready,running "
    "task:send group:ann key:k worker:w id:prefix`."
)


@click.command(epilog=QUERY_HELP)
@click.argument("query", nargs=-1)
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="Show at most N.")
@session_options
def jobs(session: Session, query: tuple[str, ...], limit: int) -> int:
    """List jobs, newest first."""
    with session.store() as app:
        found = list(app.jobs(" ".join(query), limit=limit))
        if session.as_json:
            session.print.document({"jobs": [job_document(job) for job in found]})
            return Exit.DONE
        now = app.now().timestamp()
        session.print.table(
            ("id", "state", "task", "queue", "group", "tries", "when", "note"),
            [_job_row(job, now) for job in found],
            empty="no jobs match." if query else "no jobs yet.",
            whole=2,
        )
        if len(found) == limit:
            session.print.note(f"the newest {limit}; --limit shows more.")
        if any(job.unreadable for job in found):
            session.print.note("not all fields could be read: `holdfast audit` names them.")
    return Exit.DONE


def _job_row(job: Job[Any], now: float) -> tuple[str, ...]:
    note = ""
    if unreadable := job.unreadable:
        note = f"cannot be read: {', '.join(unreadable)}"
    elif job.state is State.DEAD:
        note = job.reason or ""
    elif job.cancel_requested:
        note = "cancel asked for"
    elif job.progress is not None and job.state is State.RUNNING:
        note = f"{job.progress:.0%} {job.progress_text or ''}".strip()
    moments = {State.SCHEDULED: job.due_at, State.RUNNING: job.started_at}
    when = job.finished_at if job.state.finished else moments.get(job.state, job.created_at)
    return (job.id, job.state.value, job.task, job.queue, job.group or "", str(job.attempts), ago(when, now), note)


@click.command()
@click.argument("id")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show the latest traceback in full.")
@click.option("--follow", "-f", is_flag=True, help="Show log lines and progress until the job has finished.")
@session_options
def job(session: Session, id: str, with_traceback: bool, follow: bool) -> int:
    """Show one job: ID is its id or an unambiguous beginning of it."""
    with session.store() as app:
        if follow:
            return _follow(session, app, find_id(app, id))
        found = app.job(find_id(app, id))
        lines = app.logs(found)
        if session.as_json:
            logs = [{"at": iso(line.at), "text": line.text} for line in lines]
            session.print.document({"job": job_document(found), "logs": logs})
            return Exit.DONE
        now = app.now().timestamp()
    _show_job(session, found, now)
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


def _follow(session: Session, app: Holdfast, id: str) -> int:
    """Print what the job does as it happens, a line each (with --json, a document). Returns 1 unless it succeeded."""
    state = None
    for step in app.follow(id):
        state = step.state
        if session.as_json:
            at = None if step.at is None else iso(step.at.timestamp())
            told = {"kind": step.kind, "state": step.state, "text": step.text, "fraction": step.fraction, "at": at}
            session.print.record(told)
        elif step.kind == "log":
            session.print.line(step.text)
        elif step.kind == "progress":
            session.print.line(f"{step.fraction or 0.0:.0%} {step.text}".rstrip())
        else:
            session.print.note(f"{step.state.value}{': ' + step.text if step.text else ''}")
    return Exit.DONE if state is State.SUCCEEDED else Exit.FAILED


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
            ("key", job.key),
            ("priority", str(job.priority) if job.priority else None),
            ("arguments", json.dumps(plain(job.args), ensure_ascii=False, default=str)),
            ("tries", tries),
            ("suspect", "its process died; it runs alone next" if suspect else None),
            ("created", ago(job.created_at, now)),
            ("due", ago(job.due_at, now) if job.state is State.SCHEDULED else None),
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
@session_options
def workers(session: Session) -> int:
    """List workers: who serves what, when they last renewed, and the runner processes of each."""
    with session.store() as app:
        found = app.workers()
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"workers": [worker_document(worker) for worker in found]})
        return Exit.DONE
    portraits = {worker.id: read(worker.portrait) or WorkerStatus() for worker in found}
    short = short_ids(job_id for one in portraits.values() for runner in one.runners for job_id in runner.jobs)
    rows: list[tuple[str, ...]] = []
    for worker in found:
        rows.append(_worker_row(worker, now))
        rows += [_runner_row(runner, short) for runner in portraits[worker.id].runners]
        if left_out := portraits[worker.id].left_out:
            rows.append((f"  and {counted(left_out, 'runners')} more", *[""] * (len(WORKER_COLUMNS) - 1)))
    session.print.table(WORKER_COLUMNS, rows, empty="no worker is registered. Start one: `holdfast work MODULE:APP`.")
    return Exit.DONE


def _worker_row(worker: WorkerRecord, now: float) -> tuple[str, ...]:
    return (
        worker.id,
        worker.host,
        str(worker.pid),
        ", ".join(worker.queues),
        f"{worker.running}/{worker.slots}",
        span(worker.lease_seconds),
        ago(worker.started_at, now),
        ago(worker.renewed_at, now),
        "",
        "expired: its jobs are about to be recovered" if worker.expired else "",
        "",
    )


def _runner_row(runner: RunnerView, short: Mapping[str, str]) -> tuple[str, ...]:
    """A runner as of its worker's latest renewal."""
    jobs = [short[job_id] for job_id in runner.jobs[:JOBS_LISTED_MAX]]
    if runner.running > len(jobs):
        jobs.append(f"+{runner.running - len(jobs)}")
    state = runner.state if runner.responds else "blocked"
    return (
        "  runner",
        "",
        str(runner.pid),
        "",
        f"{runner.running}/{runner.slots}",
        "",
        "",
        "",
        size(runner.memory_bytes) if runner.memory_bytes else "",
        f"{state}, alone" if runner.alone else state,
        " ".join(jobs),
    )


@click.command()
@session_options
def stats(session: Session) -> int:
    """Show counts of jobs, dead letters and workers."""
    with session.store() as app:
        found = list(app.queues.list())
        counts = app.counts()
        workers = app.workers()
        letters = len(app.dead.list(limit=LETTERS_COUNTED_MAX))
        now = app.now().timestamp()
        target = app.safe_url
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
        ]
    )
    return Exit.DONE
