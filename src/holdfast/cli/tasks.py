"""`holdfast tasks [limit | rate]`: list tasks the store has rules for, and override their limits and rates.

Loaded by main when called. Without a subcommand it lists. The store knows a task for which code or an operator set
something: a limit, a rate, how long its jobs are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from ..records import TaskRecord, TaskRule
from .documents import task_document
from .exits import Exit
from .parse import span
from .parse_limits import LimitWord, RateWord, reset_or
from .queues import told_limit, told_rate
from .session import Session, lists, session_options

if TYPE_CHECKING:
    from ..app import Holdfast


@click.group(invoke_without_command=True)
@session_options
@click.pass_context
def tasks(ctx: click.Context, session: Session) -> int:
    """List tasks of which the store knows something: limits, rates, retention."""
    if not lists(ctx):
        return Exit.DONE
    with session.store() as app:
        found = app.tasks.list()
    if session.as_json:
        session.print.document({"tasks": [task_document(task) for task in found]})
        return Exit.DONE
    session.print.table(
        ("task", "limit", "rate", "running", "kept", "note"),
        [
            (
                task.rule.name,
                told_limit(task.rule.limit, task.override),
                told_rate(task.rule.rate, task.override),
                str(task.running or ""),
                _kept(task.rule),
                "" if task.declared else "not declared by code",
            )
            for task in found
        ],
        empty="no task has a limit, a rate or a rule of its own.",
    )
    return Exit.DONE


def _kept(rule: TaskRule) -> str:
    kept = [] if rule.retain_count is None else [f"{rule.retain_count} finished"]
    kept += [] if rule.retain_dead_count is None else [f"{rule.retain_dead_count} dead"]
    kept += [] if rule.retain_dead is None else [f"dead for {span(rule.retain_dead)}"]
    return ", ".join(kept)


@tasks.command("limit")
@click.argument("task")
@click.argument("limit", type=LimitWord(), metavar="N|none|reset")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@session_options
def limit_command(session: Session, task: str, limit: Any, dry_run: bool) -> int:
    """Let at most N jobs of TASK run at once, over all queues and workers. Overrides the code until reset."""
    return _say(session, task, dry_run, limit=limit)


@tasks.command("rate")
@click.argument("task")
@click.argument("rate", type=RateWord(), metavar="RATE|none|reset")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@session_options
def rate_command(session: Session, task: str, rate: Any, dry_run: bool) -> int:
    """Limit how many jobs of TASK start, such as 100/m, over all workers. Overrides the code until reset."""
    return _say(session, task, dry_run, rate=rate)


def _say(session: Session, task: str, dry_run: bool, *, limit: Any = UNSET, rate: Any = UNSET) -> int:
    with session.store() as app:
        before = _record(app, task)
        if dry_run:
            word = limit if limit is not UNSET else rate
            return session.would(f"change task {task!r} to {word}", {"task": task_document(before)})
        session.announce(app)
        app.tasks.limit(task, reset_or(limit), rate=reset_or(rate))
        after = _record(app, task)
        if session.as_json:
            session.print.document({"store": app.safe_url, "task": task_document(after)})
            return Exit.DONE
    told = f"limit {told_limit(after.rule.limit, after.override) or 'none'}"
    session.print.line(f"task {task!r}: {told}, rate {told_rate(after.rule.rate, after.override) or 'none'}.")
    return Exit.DONE


def _record(app: Holdfast, task: str) -> TaskRecord:
    return next((one for one in app.tasks.list() if one.rule.name == task), TaskRecord(rule=TaskRule(name=task)))
