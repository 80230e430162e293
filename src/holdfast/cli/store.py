"""`holdfast audit`, `recover`, `prune`, `migrate`: commands about the store as a whole.

Loaded by main when one of them is called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from ..records import REMEMBER_SECONDS_MIN
from .bulk import confirm
from .documents import plain
from .exits import Exit
from .parse import Duration, counted, span
from .session import Session, session_options

if TYPE_CHECKING:
    from ..backends.contract import Backend
    from ..records import Recovered


@click.command()
@session_options
def audit(session: Session) -> int:
    """Check the store against every guarantee: exit code 1 if one does not hold."""
    with session.store() as app:
        answer = app.audit()
    if session.as_json:
        session.print.document(
            {"holds": answer.holds, "checked": dict(answer.checked), "violations": plain(answer.violations)}
        )
        return Exit.DONE if answer.holds else Exit.FAILED
    for violation in answer.violations:
        session.print.line(violation.text, label=violation.rule)
    looked = ", ".join(counted(number, what) for what, number in answer.checked.items())
    found = len(answer.violations)
    if answer.holds:
        session.print.line(f"checked {looked}; no violations.", label="ok", colour="green")
    else:
        session.print.note(f"checked {looked}; {counted(found, 'violations')}.")
    return Exit.DONE if answer.holds else Exit.FAILED


def _stalls(one: Recovered) -> str:
    if not one.counted:
        return "free"
    return f"{one.stalls}, {one.shared_stalls} shared" if one.shared_stalls else str(one.stalls)


@click.command()
@session_options
def recover(session: Session) -> int:
    """Recover the jobs of expired workers now instead of at the next sweep."""
    with session.store() as app:
        session.announce(app)
        ended = app.recover()
        if session.as_json:
            session.print.document({"store": app.safe_url, "recovered": plain(ended)})
            return Exit.DONE
    session.print.table(
        ("id", "now", "task", "queue", "group", "stalls", "worker"),
        [
            (
                one.id,
                one.state.value,
                one.task,
                one.queue,
                one.group or "",
                _stalls(one),
                one.worker,
            )
            for one in ended
        ],
        empty="nothing to recover.",
    )
    return Exit.DONE


@click.command()
@click.option(
    "--older-than", type=Duration(), metavar="AGE", help="Finished longer ago than this, such as 7d; at least 10m."
)
@click.option("--dry-run", is_flag=True, help="Count what would be removed; remove nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@session_options
def prune(session: Session, older_than: float | None, dry_run: bool, yes: bool) -> int:
    """Remove finished jobs past their retention.

    Dead jobs with a dead letter are removed only if their task sets retain_dead or retain_dead_count.
    """
    if older_than is not None and older_than < REMEMBER_SECONDS_MIN:
        raise click.BadParameter(
            f"ids of finished jobs are remembered at least {span(REMEMBER_SECONDS_MIN)}.", param_hint="--older-than"
        )
    with session.store() as app:
        if dry_run:
            number = app.prune(older_than=older_than, dry_run=True)
            if session.as_json:
                session.print.document({"store": app.safe_url, "dry_run": True, "would_prune": number})
            else:
                session.print.line(f"would remove {counted(number, 'jobs')}; nothing was changed.")
            return Exit.DONE
        if older_than is not None:  # shorter than what the tasks promised their callers
            confirm(session, f"remove jobs of {app.safe_url} finished over {span(older_than)} ago?", yes=yes)
        session.announce(app)
        removed = app.prune(older_than=older_than)
        if session.as_json:
            session.print.document({"store": app.safe_url, "pruned": removed})
        else:
            session.print.line(f"removed {counted(removed, 'jobs')}.")
    return Exit.DONE


@click.command()
@session_options
def migrate(session: Session) -> int:
    """Upgrade the store's schema to this version's, or create the store if there is none. Safe to repeat."""
    with session.store(create=True) as app:
        session.announce(app)
        before, after = asyncio.run(_migrate(app._open_backend()))
        if session.as_json:
            session.print.document({"store": app.safe_url, "before": before, "after": after})
        elif before == after:
            session.print.line(f"the schema is current: version {after}.")
        else:
            session.print.line(f"migrated from version {before} to {after}.")
    return Exit.DONE


async def _migrate(backend: Backend) -> tuple[int, int]:
    """Needs an unopened backend: opening may reject an old schema, or silently upgrade it."""
    try:
        return await backend.migrate()
    finally:
        await backend.close()
