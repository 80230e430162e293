"""`holdfast groups`, `group`: list groups that have something to do, and show or change one.

Loaded by main when one of them is called.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from ..lifecycle import State
from ..records import GROUP_WEIGHT_MAX, GroupRecord
from .documents import group_document, job_document, rate_word
from .exits import Exit
from .parse import ago, tries
from .parse_limits import RESET, LimitWord, RateWord, limit_word, reset_or
from .queues import check_queue, pause_note
from .session import Session, session_options, without_ls


@click.command()
@click.argument("words", metavar="[QUEUE]", nargs=-1)
@click.option("--limit", "-n", default=100, show_default=True, type=click.IntRange(1), help="Show at most N.")
@session_options
def groups(session: Session, words: tuple[str, ...], limit: int) -> int:
    """List groups with unfinished jobs, an override or a pause, and those stopped by a dead job."""
    words = without_ls(words)
    if len(words) > 1:
        raise click.UsageError("give one queue, or none for all.")
    queue = words[0] if words else None
    with session.store() as app:
        if queue is not None:
            check_queue(queue, [record.name for record in app.queues.list()])
        found = app.groups.list(queue, limit=limit)
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"groups": [group_document(group) for group in found]})
        return Exit.DONE
    live = (State.RUNNING, State.READY, State.SCHEDULED, State.WAITING)
    session.print.table(
        ("queue", "group", "limit", "rate", *(state.value for state in live), "head", "note"),
        [
            (
                group.queue,
                group.name,
                limit_word(group.limit),
                rate_word(group.rate) or "",
                *(group.number(state) if group.counts.get(state) else "" for state in live),
                group.head or "",
                _note(group, now),
            )
            for group in found
        ],
        empty="no group has unfinished jobs.",
        whole=2,
    )
    return Exit.DONE


def _note(group: GroupRecord, now: float) -> str:
    if group.pause is not None:
        return ", ".join(filter(None, (pause_note(group.pause), _stop(group))))
    if group.stopped_by is not None:
        return _stop(group)
    notes = [] if group.override is None else [f"override {limit_word(group.override)}"]
    if group.rate_override is not None:
        notes.append(f"override {group.rate_override}")
    if group.weight > 1:
        notes.append(f"weight {group.weight}")
    if group.flow is not None and group.flow.wakes_at is not None:
        notes.append(f"next {ago(group.flow.wakes_at, now)}")
    return ", ".join(notes)


def _stop(group: GroupRecord) -> str:
    return "" if group.stopped_by is None else f"stopped by dead job {group.stopped_by}"


@click.command()
@click.argument("queue")
@click.argument("name")
@click.option("--limit", "-n", type=LimitWord(), metavar="N|none|reset", help="At most N of its jobs run at once.")
@click.option("--no-limit", is_flag=True, help="Remove the override; same as --limit reset.")
@click.option("--rate", type=RateWord(), metavar="RATE|none|reset", help="At most this many start, such as 5/s.")
@click.option("--weight", type=click.IntRange(1, GROUP_WEIGHT_MAX), help="Turns per round; other groups have one.")
@session_options
def group(session: Session, queue: str, name: str, limit: Any, no_limit: bool, rate: Any, weight: int | None) -> int:
    """Show group NAME of QUEUE, or override its limit, rate and weight."""
    if limit is not None and no_limit:
        raise click.UsageError("--limit and --no-limit exclude each other.")
    limit = RESET if no_limit else limit
    with session.store() as app:
        check_queue(queue, [record.name for record in app.queues.list()])
        if limit is not None or rate is not None or weight is not None:
            session.announce(app)
            said_limit = UNSET if limit is None else reset_or(limit)
            said_rate = UNSET if rate is None else reset_or(rate)
            said_weight = UNSET if weight is None else weight if weight > 1 else reset_or(RESET)
            app.groups.limit(queue, name, said_limit, rate=said_rate, weight=said_weight)
        found = app.groups.get(queue, name)
        members = list(app.jobs(queue=queue, group=name, limit=20))
        now = app.now().timestamp()
    if session.as_json:
        session.print.document({"group": group_document(found), "jobs": [job_document(job) for job in members]})
        return Exit.DONE
    override = f" (override {limit_word(found.override)})" if found.override is not None else ""
    rate_override = " (override)" if found.rate_override is not None else ""
    wakes_at = None if found.flow is None else found.flow.wakes_at
    session.print.fields(
        [
            ("queue", found.queue),
            ("group", found.name),
            ("order", found.order),
            ("limit", f"{limit_word(found.limit)}{override}"),
            ("rate", None if found.rate is None else f"{found.rate}{rate_override}"),
            ("weight", str(found.weight) if found.weight > 1 else None),
            ("next may start", ago(wakes_at, now)),
            ("pause", pause_note(found.pause)),
            ("stopped by", None if found.stopped_by is None else f"{found.stopped_by} (dead)"),
            ("head", found.head),
            ("unfinished", ", ".join(f"{found.number(state)} {state}" for state in found.counts) or "none"),
        ]
    )
    session.print.heading("its newest jobs")
    session.print.table(
        ("id", "state", "task", "tries", "created"),
        [(job.id, job.state.value, job.task, str(tries(job)), ago(job.created_at, now)) for job in members],
        empty="this group has no jobs.",
    )
    return Exit.DONE
