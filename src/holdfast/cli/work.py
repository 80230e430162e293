"""`holdfast work MODULE:APP`: a keeper here, runner processes under a guard, until a signal or until drained.

Loaded by main when called. Never imports the user's code: the first runner does, and reports what the keeper needs.
The guard and first runner are launched before the keeper is imported, so this module imports little by itself. While
running, a worker logs the messages of `holdfast.logs` on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from ..lazy import import_lazily, uncollected
from ..names import nearest
from .exits import CommandFailed, Exit
from .output import Printer
from .parse import LOG_FORMATS, LOG_JOBS, LOG_LEVELS, Duration, Numbered, Prefetch, Size, counted

if TYPE_CHECKING:
    import asyncio

    from .. import backends, options, worker_status
    from ..options import QueueOrder, WorkerOptions
    from ..worker.embedded import Drained
    from ..worker.processes.process_worker import Metrics, ProcessWorker
    from ..worker.processes.protocol import Hello
    from ..worker.processes.spawner import Plan
    from . import log_output
else:
    import_lazily(globals(), "asyncio", "..backends", "..options", "..worker_status", ".log_output")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--queues", "-q", metavar="QUEUE[:SLOTS],…", multiple=True, help="Queues to serve. [those of its tasks]")
@click.option(
    "--runners", "--processes", type=click.IntRange(1, 1000), metavar="N", help="Runner processes. [one per core]"
)
@click.option(
    "--slots",
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="Concurrent jobs, over all runners. [10 per runner; 100 if all tasks are async]",
)
@click.option("--prefetch", type=Prefetch(), metavar="auto|N", help="Jobs a runner may hold beyond its slots. [auto]")
@click.option(
    "--isolated", type=click.IntRange(1), metavar="N", help="Processes for isolated jobs. [2 per core, at least 4]"
)
@click.option(
    "--task-slots", type=Numbered(), metavar="TASK=N", multiple=True, help="Concurrent jobs of a task in this worker."
)
@click.option(
    "--group-slots", type=click.IntRange(1), metavar="N", help="Concurrent jobs of any one group in this worker."
)
@click.option(
    "--priority", metavar="N|N..N", help="Take only jobs of these priorities, such as 0..10, 1.. or ..-1. [all]"
)
@click.option("--weight", "weights", type=Numbered(), metavar="QUEUE=N", multiple=True, help="A queue's weight. [1]")
@click.option("--strict-order", is_flag=True, help="Always serve --queues in the given order.")
@click.option(
    "--lease", type=Duration(), metavar="DURATION", help="Jobs of a worker silent for this long run elsewhere. [30s]"
)
@click.option("--grace", type=Duration(), metavar="DURATION", help="How long running jobs may take at shutdown. [30s]")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="Timeout of tasks that have none. [none]")
@click.option("--name", metavar="NAME", envvar="HOLDFAST_WORKER_NAME", help="A name for this worker.")
@click.option("--start-timeout", type=Duration(), metavar="DURATION", help="How long importing the app may take. [2m]")
@click.option("--no-history", is_flag=True, help="Do not record statistics and events.")
@click.option("--drain", is_flag=True, help="Exit when nothing is ready or running.")
@click.option("--import", "-i", "imports", metavar="MODULE", multiple=True, help="Also import this module.")
@click.option("--app-dir", metavar="DIR", default=".", show_default=True, help="Where to import from.")
@click.option("--url", "-u", metavar="URL", help="Use this store instead of the app's.")
@click.option("--reload", is_flag=True, help="Restart the runners when code below --app-dir changes.")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a runner after about N jobs.")
@click.option(
    "--max-memory", type=Size(), metavar="SIZE", help="Replace a runner that uses more memory than this, such as 512M."
)
@click.option("--health-port", metavar="[HOST:]PORT", help="Serve /healthz and /readyz here. [host 127.0.0.1]")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve /metrics for Prometheus.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to serve it.")
@click.option(
    "--log-jobs",
    type=click.Choice(LOG_JOBS),
    help="Log the start and end of jobs. [all, but summed up above 100 lines a second]",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Log nothing below this. [info]")
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="Format of the log."
)
@click.option("--verbose", "-v", is_flag=True, help="The same as --log-level debug.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def work(
    app: str,
    queues: tuple[str, ...],
    runners: int | None,
    slots: int | None,
    prefetch: int | None,
    isolated: int | None,
    start_timeout: float | None,
    timeout: float | None,
    imports: tuple[str, ...],
    app_dir: str,
    url: str | None,
    reload: bool,
    max_jobs: int | None,
    max_memory: int | None,
    health_port: str | None,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str | None,
    log_format: str,
    verbose: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run a worker for the app MODULE:APP.

    The first SIGINT or SIGTERM lets running jobs end within --grace; the second stops and releases them.
    SIGHUP replaces the runners one by one, so that they load the current code.
    """
    if sys.platform == "win32":
        raise click.UsageError("`holdfast work` needs Linux or macOS. On Windows call app.work() in your program.")
    from ..worker.processes.launch import launched

    served, health = read_queues(queues), read_address(health_port)
    with launched(slots) as first:  # they start while the keeper is imported
        with uncollected():
            from ..worker.processes.process_worker import ProcessWorker
            from ..worker.processes.spawner import START_SECONDS_DEFAULT, Plan

        metrics = _metrics(metrics_host, metrics_port)
        _check(url, start_timeout, timeout)
        runners = runners or os.cpu_count() or 1
        chosen = _options(queues=served, slots=slots, **settings)
        plan = Plan(
            app=app,
            app_dir=app_dir,
            imports=imports,
            url=url,
            runners=runners if slots is None else min(runners, slots),
            slots=slots,
            queues=chosen.queues,
            prefetch=prefetch,
            isolated=isolated or max(4, 2 * (os.cpu_count() or 1)),
            grace=chosen.grace,
            start_timeout=START_SECONDS_DEFAULT if start_timeout is None else start_timeout,
            max_jobs=max_jobs,
            max_memory=max_memory,
            log_level=log_level or ("debug" if verbose else "info"),
            log_format=log_format,
            timeout=timeout,
        )
        printer, stores = Printer(as_json=as_json), list[str]()  # the store, once a runner has reported which it is

        def announce(hello: Hello, slots: int) -> None:
            stores.append(backends.parse_url(hello.url).safe_url)
            _announce(printer, hello, plan, slots, served)

        more: dict[str, Any] = {"reload": reload, "health": health, "metrics": metrics, "launched": first}
        drained = _run(plan, lambda: ProcessWorker(plan, chosen, announce=announce, **more))
    return _tell_end(printer, drained, next(iter(stores), None))


def _run(plan: Plan, make: Callable[[], ProcessWorker]) -> Drained:
    from ..worker.processes.spawner import RunnerRefused

    with log_output.logs_on_stderr(plan.log_level, plan.log_format):
        try:
            return asyncio.run(make().run())
        except RunnerRefused as refused:
            raise CommandFailed(Exit.IMPORT_FAILED, refused.text, refused.hint) from None


def _metrics(host: str, port: int | None) -> Metrics | None:
    if port is None:
        return None
    from ..metrics import worker_text  # raises if the extra is not installed
    from ..worker.processes.process_worker import Metrics

    return Metrics(host, port, worker_text)


def _check(url: str | None, start_timeout: float | None, timeout: float | None) -> None:
    """Raise on a mistake here, before anything is started."""
    if url is not None:
        backends.parse_url(url)
    if start_timeout is not None and start_timeout < 1:
        raise click.BadParameter("must be at least 1 s: importing an app takes time.", param_hint="--start-timeout")
    if timeout is not None and timeout <= 0:
        raise click.BadParameter("must be above 0. Leave it out for no timeout.", param_hint="--timeout")


def _options(
    *,
    task_slots: tuple[tuple[str, int], ...],
    weights: tuple[tuple[str, int], ...],
    strict_order: bool,
    no_history: bool,
    **settings: Any,
) -> WorkerOptions:
    """The worker's options from the command line; anything not given has its default."""
    chosen = {name: value for name, value in settings.items() if value is not None}
    order: QueueOrder = "strict" if strict_order else "fair"
    chosen |= {"task_slots": dict(task_slots), "history": not no_history}
    return options.WorkerOptions(weights=dict(weights), queue_order=order, **chosen)


def _tell_end(printer: Printer, drained: Drained, store: str | None) -> int:
    if printer.as_json:
        counts = {"succeeded": drained.succeeded, "failed": drained.failed, "left": drained.left}
        printer.document({"store": store, **counts})
    else:
        failed = f"{drained.failed} failed attempt{'' if drained.failed == 1 else 's'}"
        unknown = "the remaining jobs could not be counted"
        left = unknown if drained.left is None else f"{counted(drained.left, 'jobs')} left"
        printer.note(f"stopped: {drained.succeeded} succeeded, {failed}, {left}.")
    return Exit.DONE


def read_queues(words: tuple[str, ...]) -> dict[str, int | None] | None:
    """Parse `mail:50,pdf:2` into queue → slots of its own; None if nothing was given."""
    served: dict[str, int | None] = {}
    for word in (piece.strip() for text in words for piece in text.split(",")):
        name, colon, number = word.partition(":")
        if not name or (colon and not (number.isascii() and number.isdigit() and int(number) > 0)):
            raise click.BadParameter(f"cannot read {word!r}. Write mail, or mail:50 for 50 slots.", param_hint="-q")
        served[name] = int(number) if colon else None
    return served or None


def read_address(text: str | None) -> tuple[str, int] | None:
    """Parse `8080` or `0.0.0.0:8080` into host and port."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise click.BadParameter(f"cannot read {text!r}. Write 8080, or 0.0.0.0:8080.", param_hint="--health-port")
    return host.strip("[]") or "127.0.0.1", int(port)


def _announce(printer: Printer, hello: Hello, plan: Plan, slots: int, served: dict[str, int | None] | None) -> None:
    known = {task.queue for task in hello.tasks}
    store = backends.parse_url(hello.url).safe_url
    why = worker_status.DEFAULT_SLOTS.get(hello.slots_from)
    size = f"{counted(plan.runners, 'runners')}, {counted(slots, 'slots')}{f': {why}' if why else ''}"
    who = f"holdfast {__version__}: working for {plan.app} (pid {os.getpid()}, {size})"
    printer.note(f"{who}, {counted(len(hello.tasks), 'tasks')}, store {store}")
    for queue in served or ():
        if queue not in known:
            printer.note(f"note: no task of this app names queue {queue!r}.{nearest(queue, known)}")
