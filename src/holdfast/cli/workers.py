"""`holdfast workers [pause | resume | slots | stacks | stop]`: list workers, and ask one for something.

Loaded by main when called. Without a subcommand it lists. A command goes through the store: the worker gets it with its
next renewal and stores what came of it, which is shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from ..errors import JobNotFound
from ..records import WorkerRecord
from ..worker_commands import ANSWER_WITHIN_SECONDS
from ..worker_status import DEFAULT_SLOTS, RunnerView, WorkerStatus, read
from .documents import worker_document
from .exits import CommandFailed, Exit
from .operate import me
from .parse import Duration, ago, counted, short_ids, size, span
from .session import Command, Session, add_ls, lists, session_options

if TYPE_CHECKING:
    from ..app import Holdfast

WORKER_COLUMNS = (
    "worker", "host", "pid", "queues", "busy", "lease", "started", "renewed", "memory", "note", "jobs"
)  # fmt: skip
WORKER_COLUMNS_DROPPED = (5, 6, 8, 1)  # on a narrow terminal: lease, started, memory, host
JOBS_LISTED_MAX = 3  # per runner


@click.group(invoke_without_command=True)
@session_options
@click.pass_context
def workers(ctx: click.Context, session: Session) -> int:
    """List workers: who serves what, when they last renewed, and the runner processes of each."""
    if not lists(ctx):
        return Exit.DONE
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
        rows.append(_worker_row(worker, now, portraits[worker.id]))
        rows += [_runner_row(runner, short) for runner in portraits[worker.id].runners]
        if left_out := portraits[worker.id].left_out:
            rows.append((f"  and {counted(left_out, 'runners')} more", *[""] * (len(WORKER_COLUMNS) - 1)))
    empty = "no worker is registered. Start one: `holdfast work MODULE:APP`."
    session.print.table(WORKER_COLUMNS, rows, empty=empty, drop=WORKER_COLUMNS_DROPPED)
    return Exit.DONE


add_ls(workers)


def _worker_row(worker: WorkerRecord, now: float, status: WorkerStatus) -> tuple[str, ...]:
    notes = ["paused"] if status.paused else []
    notes += [f"priority {status.priorities}"] if status.priorities else []
    notes += ["takes unknown tasks"] if status.catch_all else []
    notes += ["slots: " + DEFAULT_SLOTS["async"]] if status.slots_from == "async" else []
    notes += [f"batches of {most}: {task}" for task, most in status.batches.items()]
    return (
        f"{worker.id} ({status.name})" if status.name else worker.id,
        worker.host,
        str(worker.pid),
        ", ".join(worker.queues),
        f"{worker.running}/{worker.slots}",
        span(worker.lease_seconds),
        ago(worker.started_at, now),
        ago(worker.renewed_at, now),
        "",
        "expired: its jobs are about to be recovered" if worker.expired else ", ".join(notes),
        "",
    )


def _runner_row(runner: RunnerView, short: Mapping[str, str]) -> tuple[str, ...]:
    """A runner as of its worker's latest renewal."""
    jobs = [short[job_id] for job_id in runner.jobs[:JOBS_LISTED_MAX]]
    if runner.running + runner.ahead > len(jobs):
        jobs.append(f"+{runner.running + runner.ahead - len(jobs)}")
    state = runner.state if runner.responds else "blocked"
    return (
        "  runner",
        "",
        str(runner.pid),
        "",
        f"{runner.running}/{runner.slots}" + (f" +{runner.ahead}" if runner.ahead else ""),
        "",
        "",
        "",
        size(runner.memory_bytes) if runner.memory_bytes else "",
        f"{state}, alone" if runner.alone else state,
        " ".join(jobs),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Asking one worker for something


def _asks(name: str, *arguments: Callable[[Command], Command]) -> Callable[[Command], click.Command]:
    """Declares a subcommand that asks one worker for something and waits for its reply."""
    text = "Wait this long for its reply.  [default: 60s]"
    wait = click.option("--wait", type=Duration(), metavar="DURATION", default=ANSWER_WITHIN_SECONDS, help=text)

    def declare(command: Command) -> click.Command:
        made: Command = wait(session_options(command))
        for argument in reversed(arguments):
            made = argument(made)
        return workers.command(name)(click.argument("worker")(made))

    return declare


def _ask(session: Session, worker: str, ask: Callable[[Holdfast, str], str], what: str) -> int:
    with session.store() as app:
        id = find_worker(app, worker)
        session.announce(app)
        result = ask(app, id)
        if session.as_json:
            session.print.document({"store": app.safe_url, "worker": id, "asked": what, "result": result})
        else:
            session.print.line(result if what == "stacks" else f"{id}  {result}")
    return Exit.DONE


def find_worker(app: Holdfast, typed: str) -> str:
    """The id of the only worker whose id begins or ends with this."""
    ids = [one.id for one in app.workers()]
    found = [id for id in ids if id == typed] or [id for id in ids if id.startswith(typed) or id.endswith(typed)]
    if not found:
        raise JobNotFound(typed, "worker")
    if len(found) > 1:
        listed = "\n  ".join(sorted(found))
        raise CommandFailed(Exit.USAGE, f"{typed!r} fits several workers:\n  {listed}", "Give more of the id.")
    return found[0]


@_asks("pause")
def pause(session: Session, worker: str, wait: float) -> int:
    """Make WORKER stop claiming; its running jobs continue."""
    return _ask(session, worker, lambda app, known: app.pause_worker(known, by=me(), timeout=wait), "pause")


@_asks("resume")
def resume(session: Session, worker: str, wait: float) -> int:
    """Let a paused WORKER claim again."""
    return _ask(session, worker, lambda app, known: app.resume_worker(known, by=me(), timeout=wait), "resume")


@_asks("slots", click.argument("number", type=click.IntRange(1)))
def slots(session: Session, worker: str, number: int, wait: float) -> int:
    """Make WORKER use NUMBER slots, at most as many as it was started with."""
    return _ask(session, worker, lambda app, known: app.set_worker_slots(known, number, by=me(), timeout=wait), "slots")


@_asks("stacks")
def stacks(session: Session, worker: str, wait: float) -> int:
    """Show where every thread of WORKER's runners is right now."""
    return _ask(session, worker, lambda app, known: app.worker_stacks(known, by=me(), timeout=wait), "stacks")


@_asks("stop")
def stop(session: Session, worker: str, wait: float) -> int:
    """Stop WORKER gracefully, as SIGTERM does."""
    return _ask(session, worker, lambda app, known: app.stop_worker(known, by=me(), timeout=wait), "stop")
