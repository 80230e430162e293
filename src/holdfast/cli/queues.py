"""`holdfast queues [limit | rate | pause | resume | empty | obliterate]`, `holdfast tasks [limit | rate]`: list queues
and tasks, override their limits and rates, pause and empty queues.

Loaded by main when one of them is called. Without a subcommand they list.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from ..inspection.explain import limit_in_force, rate_in_force
from ..lifecycle import UNSTARTED, State
from ..names import nearest
from ..operator import make_pause
from ..rates import Rate
from ..records import Override, Pause, QueueRecord, TaskRecord, TaskRule, WorkerRecord
from ..worker_status import read
from .bulk import confirm, progress_bar, report_bulk
from .documents import queue_document, rate_word, task_document
from .exits import CommandFailed, Exit
from .operate import me, pause_it, resume_it
from .parse import Duration, ago, counted, span
from .parse_limits import LimitWord, RateWord, limit_word, reset_or
from .session import Session, add_ls, lists, queue_hint, session_options

if TYPE_CHECKING:
    from ..app import Holdfast


@click.group(invoke_without_command=True)
@session_options
@click.pass_context
def queues(ctx: click.Context, session: Session) -> int:
    """List queues with their limits, rates, group rules, pauses and jobs by state."""
    if not lists(ctx):
        return Exit.DONE
    with session.store() as app:
        found = list(app.queues.list())
        prefetch = _prefetch_by_queue(app.workers())
        now = app.now().timestamp()
    if session.as_json:
        documents = [{**queue_document(queue), "group_prefetch": prefetch.get(queue.name, 1)} for queue in found]
        session.print.document({"queues": documents})
        return Exit.DONE
    session.print.table(
        ("queue", "limit", "rate", "groups", *(state.value for state in State), "oldest", "note"),
        [
            (
                queue.name,
                told_limit(queue.limit, queue.override),
                told_rate(queue.rate, queue.override),
                _groups(queue, prefetch.get(queue.name, 1)),
                *numbers(queue.counts, State),
                ago(queue.oldest_due_at, now),
                _note(queue, now),
            )
            for queue in found
        ],
        empty="no queues yet.",
    )
    return Exit.DONE


def _groups(queue: QueueRecord, prefetch: int) -> str:
    rate = "" if queue.group_rate is None else f" {queue.group_rate}"
    together = f", prefetch {prefetch}" if prefetch > 1 else ""
    stops = ", stops at a dead job" if queue.on_dead == "stop" else ""
    window = "" if queue.order_window is None else f", waits {span(queue.order_window)} for lower orders"
    return f"{queue.group_order} {limit_word(queue.group_limit)}{rate}{together}{stops}{window}"


def _prefetch_by_queue(workers: Iterable[WorkerRecord]) -> dict[str, int]:
    """How many jobs of a group live workers lease together: the largest number, as each follows its own code."""
    views = [read(worker.portrait) for worker in workers if not worker.expired]
    pairs = sorted(pair for view in views if view is not None for pair in view.group_prefetch.items())
    return dict(pairs)


def _note(queue: QueueRecord, now: float) -> str:
    slowed = queue.flow is not None and queue.flow.shut_until > now
    notes = [pause_note(queue.pause)] if queue.pause is not None else []
    notes += [f"slowed down, goes on {ago(queue.flow.shut_until, now)}"] if slowed and queue.flow is not None else []
    notes += ["newest first"] if queue.order == "lifo" else []
    notes += [f"dead jobs are copied to {queue.dead_queue}"] if queue.dead_queue is not None else []
    return ", ".join(notes)


@queues.command("empty")
@click.argument("queue")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@session_options
def empty(session: Session, queue: str, dry_run: bool, yes: bool) -> int:
    """Delete the jobs of QUEUE that have not started."""
    with session.store() as app:
        number = _number(app, queue, UNSTARTED)
        if dry_run:
            return session.would(f"delete {counted(number, 'unstarted jobs')} of queue {queue!r}", {"jobs": number})
        confirm(session, f"delete {counted(number, 'unstarted jobs')} of queue {queue!r} of {app.safe_url}?", yes=yes)
        session.announce(app)
        with progress_bar(session, "delete", number) as progress:
            return report_bulk(session, app, app.queues.empty(queue, by=me(), progress=progress))


@queues.command("obliterate")
@click.argument("queue")
@click.option("--wait", type=Duration(), metavar="DURATION", help="Pause it and wait this long for its running jobs.")
@click.option("--confirm", "typed", metavar="QUEUE", help="The queue's name once more, instead of typing it.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
@session_options
def obliterate(session: Session, queue: str, wait: float | None, typed: str | None, dry_run: bool) -> int:
    """Delete every job and dead letter of QUEUE, its overrides and pauses.

    Refused while its jobs run, unless --wait lets them end. The queue's name must be typed to confirm.
    """
    with session.store() as app:
        number = _number(app, queue, frozenset(State))
        if dry_run:
            return session.would(f"delete {counted(number, 'jobs')} of queue {queue!r}", {"jobs": number})
        if typed is None and not session.as_json and sys.stdin.isatty():
            question = f"This deletes {counted(number, 'jobs')} of {app.safe_url} for good. Type the queue's name"
            typed = click.prompt(question, err=True)
        if typed != queue:
            raise CommandFailed(Exit.USAGE, "not confirmed; nothing was changed.", f"Add --confirm {queue}.")
        session.announce(app)
        with progress_bar(session, "delete", number) as progress:
            return report_bulk(session, app, app.queues.obliterate(queue, wait=wait, by=me(), progress=progress))


def _number(app: Holdfast, queue: str, states: Iterable[State]) -> int:
    """How many jobs of the queue are in these states; it must exist."""
    if queue not in {one.name for one in app.queues.list()}:
        raise CommandFailed(Exit.NOT_FOUND, f"there is no queue {queue!r}.", "`holdfast queues` lists them.")
    counts = app.counts(queue)[queue]
    return sum(counts[state] for state in states)


def told_limit(declared: int | None, override: Override | None) -> str:
    """The limit in force, plus the declared one if an operator overrides it."""
    return _both(limit_word(limit_in_force(declared, override)), limit_word(declared))


def told_rate(declared: Rate | None, override: Override | None) -> str:
    """Like `told_limit`, for a rate."""
    return _both(rate_word(rate_in_force(declared, override)) or "", rate_word(declared) or "")


def _both(now: str, declared: str) -> str:
    return now if now == declared else f"{now or 'none'} (code: {declared or 'none'})"


def numbers(counts: Mapping[str, int], states: Iterable[State]) -> tuple[str, ...]:
    return tuple(str(counts.get(state.value) or "") for state in states)


def pause_note(pause: Pause | None) -> str:
    """A pause, for display."""
    if pause is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    return f"paused{by}{': ' + pause.reason if pause.reason else ''}"


def check_queue(queue: str, known: list[str]) -> None:
    """Reject a queue that does not exist: most likely a typo."""
    if queue not in known:
        listed = nearest(queue, known) or (f" Queues: {', '.join(known[:8])}." if known else " There are none yet.")
        raise CommandFailed(Exit.NOT_FOUND, f"there is no queue {queue!r}.{listed}")


# ---------------------------------------------------------------------- pauses


@queues.command("pause")
@click.argument("queue")
@click.option("--reason", "-r", default="", help="Shown with the pause.")
@session_options
def pause_command(session: Session, queue: str, reason: str) -> int:
    """Pause QUEUE: none of its jobs start until resume. Running jobs end normally."""
    return pause_it(session, make_pause(queue, None, None, reason, me()))


@queues.command("resume")
@click.argument("queue")
@session_options
def resume_command(session: Session, queue: str) -> int:
    """End the pause of QUEUE, or its slow-down."""
    return resume_it(session, make_pause(queue, None, None))


# ---------------------------------------------------------------------- tasks: the store knows those for which code or
# an operator set something, such as a limit, a rate, how long their jobs are kept


@click.group(invoke_without_command=True)
@session_options
@click.pass_context
def tasks(ctx: click.Context, session: Session) -> int:
    """List the tasks that live workers have, and those with their own limit, rate or retention."""
    if not lists(ctx):
        return Exit.DONE
    with session.store() as app:
        found = {task.rule.name: task for task in app.tasks.list()}
        workers = _workers_by_task(app.workers())
    names = sorted({*found, *workers})
    every = {name: found.get(name) or TaskRecord(rule=TaskRule(name=name), declared=True) for name in names}
    if session.as_json:
        known = [{**task_document(task), "workers": workers[name]} for name, task in every.items()]
        session.print.document({"tasks": known})
        return Exit.DONE
    session.print.table(
        ("task", "workers", "limit", "rate", "running", "kept", "note"),
        [
            (
                name,
                str(workers[name] or ""),
                told_limit(task.rule.limit, task.override),
                told_rate(task.rule.rate, task.override),
                str(task.running or ""),
                _kept(task.rule),
                "" if task.declared or workers[name] else "not declared by code",
            )
            for name, task in every.items()
        ],
        empty="no tasks: no live worker has one, and none has a limit, a rate or a retention rule.",
    )
    return Exit.DONE


def _workers_by_task(workers: Iterable[WorkerRecord]) -> Counter[str]:
    """How many live workers have each task, by their own lists."""
    views = [read(worker.portrait) for worker in workers if not worker.expired]
    return Counter(name for view in views if view is not None for name in view.tasks or ())


def _kept(rule: TaskRule) -> str:
    kept = [] if rule.retain_count is None else [f"{rule.retain_count} finished"]
    kept += [] if rule.retain_dead_count is None else [f"{rule.retain_dead_count} dead"]
    kept += [] if rule.retain_dead is None else [f"dead for {span(rule.retain_dead)}"]
    return ", ".join(kept)


# ---------------------------------------------------------------------- overrides of queues and tasks


def _add_overrides(group: click.Group, kind: str, scope: str) -> None:
    """Add the subcommands `limit` and `rate`."""
    what = kind.upper()
    named = click.argument("name", metavar=what)
    dry_run = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
    lasts = "Overrides the code until reset."

    @group.command("limit", help=f"Let at most N jobs of {what} run at once, over all {scope}. {lasts}")
    @named
    @click.argument("limit", type=LimitWord(), metavar="N|none|reset")
    @dry_run
    @session_options
    def limit_command(session: Session, name: str, limit: Any, dry_run: bool) -> int:
        return _override(session, kind, name, dry_run, limit=limit)

    @group.command("rate", help=f"Limit how many jobs of {what} start, such as 100/m, over all workers. {lasts}")
    @named
    @click.argument("rate", type=RateWord(), metavar="RATE|none|reset")
    @dry_run
    @session_options
    def rate_command(session: Session, name: str, rate: Any, dry_run: bool) -> int:
        return _override(session, kind, name, dry_run, rate=rate)


add_ls(queues)
add_ls(tasks)
_add_overrides(queues, "queue", "workers")
_add_overrides(tasks, "task", "queues and workers")


def _override(session: Session, kind: str, name: str, dry_run: bool, *, limit: Any = UNSET, rate: Any = UNSET) -> int:
    with session.store() as app:
        if dry_run:
            word = limit if limit is not UNSET else rate
            return session.would(f"change {kind} {name!r} to {word}", {kind: _of(app, kind, name)[0]})
        session.announce(app)
        known = kind != "queue" or any(one.name == name for one in app.queues.list())
        (app.queues if kind == "queue" else app.tasks).limit(name, reset_or(limit), rate=reset_or(rate))
        document, declared, override = _of(app, kind, name)
        if session.as_json:
            session.print.document({"store": app.safe_url, kind: document})
            return Exit.DONE
        hint = "" if kind != "queue" or known else queue_hint(app, name, but=name)
    limit_told, rate_told = told_limit(declared.limit, override), told_rate(declared.rate, override)
    session.print.line(f"{kind} {name!r}: limit {limit_told or 'none'}, rate {rate_told or 'none'}.")
    if hint:
        session.print.note(hint)
    return Exit.DONE


def _of(app: Holdfast, kind: str, name: str) -> tuple[Any, QueueRecord | TaskRule, Override | None]:
    """A queue or task as JSON, what its code declares, and its override. One that is not known can be limited, too."""
    if kind == "queue":
        queue = next((one for one in app.queues.list() if one.name == name), QueueRecord(name=name))
        return queue_document(queue), queue, queue.override
    task = next((one for one in app.tasks.list() if one.rule.name == name), TaskRecord(rule=TaskRule(name=name)))
    return task_document(task), task.rule, task.override
