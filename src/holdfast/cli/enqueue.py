"""`holdfast enqueue`: one job, by its task's name; validated against its function if --app provides the code.
`holdfast publish`: one for each subscriber of a topic.

Loaded by main when called.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import click

from ..errors import TaskNotRegistered
from ..names import nearest
from ..options import OnConflict
from ..records import KeyScope, KeyUntil, OnExpire
from .completion import complete_queue
from .documents import job_document, plain
from .exits import CommandFailed, Exit
from .operate import me
from .parse import Duration, Moment, counted, read_arguments
from .session import Session, session_options

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..job import Job
    from ..named_task import NamedTask
    from ..task import Task, Using


def _one_of(words: Any) -> click.Choice[str]:
    return click.Choice(get_args(words))


@click.command()
@click.argument("task")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--args", "document", metavar="JSON", help="All arguments as one JSON object.")
@click.option("--queue", "-q", help="Queue, instead of the task's own.", shell_complete=complete_queue)
@click.option("--delay", type=Duration(), metavar="DURATION", help="Due after this time, such as 90s or 2h.")
@click.option("--at", type=Moment(), metavar="TIME", help="Due at this time, ISO 8601; local without an offset.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first.")
@click.option("--group", help="Order and concurrency key.")
@click.option("--order", type=int, help="Its place among the jobs of its group: lower ones go first.")
@click.option("--key", help="At most one live job of this task and key.")
@click.option("--on-conflict", type=_one_of(OnConflict), help="What to do if another job has the key.  [default: keep]")
@click.option("--key-scope", type=_one_of(KeyScope), help="Unique within its queue or over all queues.")
@click.option("--key-until", type=_one_of(KeyUntil), help="How long the job keeps the key.")
@click.option(
    "--window", type=Duration(), metavar="DURATION", help="Keep the key this long; throttle and extend need it."
)
@click.option(
    *("--debounce-wait", "--calm", "pushed"),
    type=Duration(),
    metavar="DURATION",
    help="debounce: due after this long without a call.",
)
@click.option(
    *("--debounce-wait-max", "--calm-max", "wait_max"),
    type=Duration(),
    metavar="DURATION",
    help="debounce: postpone no longer than this.",
)
@click.option("--expires", type=Duration(), metavar="DURATION", help="Expires if not started within this time.")
@click.option("--on-expire", type=_one_of(OnExpire), help="What happens to it then.  [default: bury]")
@click.option("--header", "headers", metavar="NAME=TEXT", multiple=True, help="A header; may be repeated.")
@click.option("--id", "job_id", help="The job's id; repeating it creates no second job.")
@click.option("--wait", is_flag=True, help="Wait for the job to finish and show its result.")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="With --wait: wait no longer than this.")
@session_options
def enqueue(
    session: Session,
    task: str,
    arguments: tuple[str, ...],
    document: str | None,
    wait: bool,
    timeout: float | None,
    job_id: str | None,
    pushed: float | None,
    headers: tuple[str, ...],
    **chosen: Any,
) -> int:
    """Enqueue a job of TASK.

    The value of NAME=VALUE is JSON if it can be parsed as such, otherwise text. With --app the arguments are checked
    against the task's function here; without it, by the worker that runs it.
    """
    with session.producer() as app:
        chosen |= {"by": me(), "id": job_id, "wait": pushed, "headers": read_headers(headers) or None}
        settings = {name: value for name, value in chosen.items() if value is not None}
        callee, text_fields = find_callee(app, task, settings, with_code=session.has_code)
        given = read_arguments(arguments, document, text_fields)
        session.announce(app)
        job = callee.enqueue(**given)
        if not wait:
            _show(session, app, job)
            return Exit.DONE
        value = job.result(timeout=timeout)
        job.refresh()
        if session.as_json:
            _show(session, app, job)
        else:
            session.print.note(f"job {job.id} {job.state.value}.")
            session.print.line(json.dumps(plain(value), ensure_ascii=False, default=str))
    return Exit.DONE


@click.command()
@click.argument("topic")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--args", "document", metavar="JSON", help="The whole payload as one JSON object.")
@click.option("--id", "event_id", help="The event's id; repeating it creates no second job.")
@click.option("--delay", type=Duration(), metavar="DURATION", help="Due after this time, such as 90s or 2h.")
@session_options
def publish(
    session: Session,
    topic: str,
    arguments: tuple[str, ...],
    document: str | None,
    event_id: str | None,
    delay: float | None,
) -> int:
    """Enqueue a job of every task that subscribes to TOPIC. Needs --app: subscriptions are declared in code.

    NAME=VALUE are the values of the payload, as for `holdfast enqueue`.
    """
    if not session.has_code:
        raise click.UsageError("subscriptions are declared in code: give --app MODULE:APP.")
    with session.producer() as app:
        app.import_tasks()
        wanted = [task for task in app.tasks.values() if topic in task.defaults.subscribes]
        text_fields = frozenset[str]().union(*(_text_parameters(task) for task in wanted))
        payload = read_arguments(arguments, document, text_fields)
        session.announce(app)
        chosen: dict[str, Any] = {"by": me(), "id": event_id, "delay": delay}
        made = app.publish(topic, payload, **{name: value for name, value in chosen.items() if value is not None})
        if session.as_json:
            session.print.document({"store": app.safe_url, "created": made.created, "kept": made.kept})
            return Exit.DONE
    session.print.line(f"{counted(made.created, 'jobs')} made{f', {made.kept} kept' if made.kept else ''}.")
    return Exit.DONE


def read_headers(given: tuple[str, ...]) -> dict[str, str]:
    """The headers of --header NAME=TEXT; the text is never parsed."""
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter("write NAME=TEXT.", param_hint="--header")
        headers[name] = value
    return headers


def find_callee(
    app: Holdfast, name: str, settings: dict[str, Any], *, with_code: bool
) -> tuple[Using[..., Any] | NamedTask, frozenset[str]]:
    """The task to enqueue with, and which of its parameters are text."""
    if not with_code:
        return app.task_by_name(name, **settings), frozenset()
    app.import_tasks()
    found = app.find_task(name)
    if found is None:
        hint = nearest(name, app.tasks).strip()
        raise CommandFailed(Exit.NOT_FOUND, str(TaskNotRegistered(name, tuple(app.tasks))), hint)
    return found.options(**settings), _text_parameters(found)


def _text_parameters(task: Task[..., Any]) -> frozenset[str]:
    """Parameters annotated `str`: for these, 007 is text, not a number."""
    annotations = getattr(task.fn, "__annotations__", {})
    return frozenset(name for name, kind in annotations.items() if kind is str or kind == "str")


def _show(session: Session, app: Holdfast, job: Job[Any]) -> None:
    if session.as_json:
        shown = {**job_document(job), "created": job.created, "replaced": job.replaced}
        session.print.document({"store": app.safe_url, "job": shown})
        return
    session.print.line(job.id)
    if job.replaced:
        session.print.note("replaced: the existing job got this call's arguments and due time.")
    elif not job.created:
        session.print.note(f"kept: this job already exists ({job.state.value}).")
