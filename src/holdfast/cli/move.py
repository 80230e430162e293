"""`holdfast move SOURCE_URL TARGET_URL`: copy every job, dead letter, rule and pause from one store to another.

Loaded by main when called. Shows progress on stderr: a bar for people, one JSON line a second for machines. What is
done, and in which order, is up to the mover; killed at any moment, the same command continues.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

from ..errors import BackendError, OutcomeUnknown
from .bulk import confirm
from .exits import CommandFailed, Exit
from .parse import Duration, counted
from .session import Session, holds_something

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..mover import Comparison, Moved, Side, Step, Survey

WAIT_SECONDS = 60.0
LINE_EVERY_SECONDS = 1.0
TITLES = {
    "seal": "sealing both stores",
    "wait": "waiting for running jobs",
    "carry": "carrying jobs",
    "compare": "comparing both stores",
    "open": "opening the target",
}
KINDS = {
    "jobs": "jobs",
    "letters": "dead letters",
    "log_lines": "log lines",
    "queues": "queue rules",
    "tasks": "task rules",
    "overrides": "overrides",
    "entries": "cron entries",
    "pauses": "pauses",
}


@click.command()
@click.argument("source", metavar="SOURCE_URL")
@click.argument("target", metavar="TARGET_URL")
@click.option(
    "--wait", type=Duration(), metavar="DURATION", default=WAIT_SECONDS, help="How long running jobs may take. [60s]"
)
@click.option("--dry-run", is_flag=True, help="Show what would be moved; change nothing.")
@click.option("--abandon", is_flag=True, help="Give up an unfinished move: the source works again.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; progress goes to stderr.")
def move(source: str, target: str, wait: float, dry_run: bool, abandon: bool, yes: bool, as_json: bool) -> int:
    """Move everything from one store to another: jobs in every state, dead letters, rules, overrides, pauses.

    The source is sealed first: it accepts and starts no more jobs, and its workers stop when theirs have ended.
    The target must be empty. If it is killed, run the same command again: it continues. The target opens once
    both stores have been compared row by row; the source stays sealed and names the target. Exit code 0 only then.
    """
    from ..app import Holdfast

    here, there = (Session(url=url, app=None, app_dir=".", as_json=as_json) for url in (source, target))
    with Holdfast(source) as one, Holdfast(target) as two:
        here.check_store(one, create=False)
        there.check_store(two, create=True)
        if dry_run:
            return _preview(here, one, two, asyncio.run(_survey(one, two)))
        if abandon:
            return _abandon(here, one, two, yes=yes)
        confirm(here, f"seal {one.safe_url} and move everything in it to {two.safe_url}?", yes=yes)
        with _progress(here) as say:
            moved = asyncio.run(_move(one, two, wait, say))
    return _report(here, one, two, moved)


# ---------------------------------------------------------------------- execution


@asynccontextmanager
async def _side(app: Holdfast) -> AsyncIterator[Side]:
    from ..backends import parse_url
    from ..mover import Side

    backend = app._open_backend()
    await backend.open()
    try:
        yield Side(backend, parse_url(app.url).store_name)
    finally:
        await backend.close()


async def _move(one: Holdfast, two: Holdfast, wait: float, say: Callable[[Step], None]) -> Moved:
    from ..mover import Mover

    async with _side(one) as source, _side(two) as target:
        return await Mover(source, target, wait=wait, say=say).run()


async def _survey(one: Holdfast, two: Holdfast) -> Survey:
    from ..mover import survey

    async with _side(one) as source:
        if not _may_look_at(two):
            return await survey(source, None)
        async with _side(two) as target:
            return await survey(source, target)


def _may_look_at(target: Holdfast) -> bool:
    """Opening a store creates it, and a dry run must create nothing: only a file's existence can be checked first."""
    from ..backends import parse_url

    address = parse_url(target.url)
    return address.scheme == "sqlite" and holds_something(address.path)


def _abandon(session: Session, one: Holdfast, two: Holdfast, *, yes: bool) -> int:
    from ..mover import abandon

    async def give_up() -> bool:
        async with _side(one) as source, _side(two) as target:
            return await abandon(source, target)

    confirm(session, f"give up the move from {one.safe_url} to {two.safe_url}?", yes=yes)
    left = asyncio.run(give_up())
    if session.as_json:
        document = {"source": one.safe_url, "target": two.safe_url, "abandoned": True, "target_holds_a_part": left}
        session.print.document(document)
    else:
        session.print.line(f"abandoned: {one.safe_url} works again.")
        if left:
            session.print.note(f"{two.safe_url} holds a part of the jobs and stays sealed. Delete it.")
    return Exit.DONE


# ---------------------------------------------------------------------- output


def _preview(session: Session, one: Holdfast, two: Holdfast, found: Survey) -> int:
    if session.as_json:
        document = {"dry_run": True, "source": one.safe_url, "target": two.safe_url, "begins": found.plan.begins}
        session.print.document({**document, "jobs": found.jobs, "running": found.leases})
        return Exit.DONE
    rows = [(queue, state, str(number)) for queue, by in sorted(found.jobs.items()) for state, number in by.items()]
    session.print.table(("queue", "state", "jobs"), rows, empty="no job.", whole=2)
    total = sum(number for by in found.jobs.values() for number in by.values())
    session.print.note(f"would move {counted(total, 'jobs')} to {two.safe_url}, beginning {found.plan.begins}.")
    if found.leases:
        session.print.note(f"{counted(found.leases, 'jobs')} running: the move would wait until they have ended.")
    session.print.note("nothing was changed.")
    return Exit.DONE


def _report(session: Session, one: Holdfast, two: Holdfast, moved: Moved) -> int:
    compared = moved.comparison
    if compared is not None and not compared.equal:
        listed = "\n  ".join(compared.differences)
        raise CommandFailed(
            Exit.FAILED,
            f"the target differs from the source:\n  {listed}",
            "Both stay sealed. `holdfast move … --abandon` lets the source work again; then delete the target.",
        )
    if session.as_json:
        document = {"source": one.safe_url, "target": two.safe_url, "move": moved.move, "begins": moved.begins}
        session.print.document({**document, **_figures(compared), "moved": True})
        return Exit.DONE
    if compared is None:
        session.print.line(f"everything was already moved to {two.safe_url}.", label="moved", colour="green")
    else:
        parts = [counted(compared.rows.get(kind, 0), words) for kind, words in KINDS.items()]
        session.print.line(f"{', '.join(parts)}; both stores are equal.", label="moved", colour="green")
        session.print.line(f"sha256 {compared.target_digest}", label="digest", colour="green")
    session.print.note(f"{one.safe_url} stays sealed. Use {two.safe_url} from now on.")
    return Exit.DONE


def _figures(compared: Comparison | None) -> dict[str, object]:
    if compared is None:
        return {"rows": None, "digest": None}
    return {"rows": compared.rows, "digest": compared.target_digest}


@contextmanager
def _progress(session: Session) -> Iterator[Callable[[Step], None]]:
    """Progress: JSON lines, or a bar."""
    if session.as_json:
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    unfinished = False
    tasks: dict[str, TaskID] = {}

    def say(step: Step) -> None:
        if not tasks:
            bars.start()  # not earlier: a refused move shows no bar
        if step.step not in tasks:
            tasks[step.step] = bars.add_task(TITLES[step.step], total=step.total)
        bars.update(tasks[step.step], completed=step.done, total=step.total)

    try:
        yield say
    except (KeyboardInterrupt, BackendError, OutcomeUnknown):
        unfinished = bool(tasks)
        raise
    finally:
        if tasks:
            bars.stop()
        if unfinished:
            session.print.note("the move is unfinished. Run the same command to continue, or --abandon to give it up.")


def _lines() -> Callable[[Step], None]:
    """One line when a step begins or ends, and at most one a second in between."""
    said: dict[str, tuple[float, Step]] = {}

    def say(step: Step) -> None:
        now = time.monotonic()
        at, last = said.get(step.step, (0.0, None))
        if last is None or (step != last and (step.done == step.total or now - at >= LINE_EVERY_SECONDS)):
            said[step.step] = now, step
            click.echo(json.dumps({"step": step.step, "done": step.done, "total": step.total}), err=True)

    return say
