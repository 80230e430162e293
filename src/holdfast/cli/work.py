"""`holdfast work MODULE:APP`: a worker in this process, until a signal or, with --drain, until nothing is left.

Loaded by main when called. Runs the embedded worker through `app.work`; what it says on the way are the log sentences
of `holdfast.logs`, on stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from .exits import Exit
from .session import Session
from .spelling import Duration, nearest

if TYPE_CHECKING:
    from ..app import Holdfast

PROCESS_WORKER = "comes with the process worker; this version runs one process."


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--queues", "-q", metavar="QUEUE[:SLOTS],…", multiple=True, help="Serve these. [those its tasks name]")
@click.option("--slots", type=click.IntRange(1), help="Jobs at once, over all queues.")
@click.option("--lease", type=Duration(), metavar="DURATION", help="How long a silent worker keeps its jobs. [30s]")
@click.option("--grace", type=Duration(), metavar="DURATION", help="How long handlers may go on at stop. [30s]")
@click.option("--on-fence", type=click.Choice(["warn", "exit"]), help="When renewal fails and threads do not stop.")
@click.option("--drain", is_flag=True, help="End when nothing is ready or running.")
@click.option("--import", "-i", "imports", metavar="MODULE", multiple=True, help="Import this too; it defines tasks.")
@click.option("--app-dir", metavar="DIR", default=".", show_default=True, help="Where to import from.")
@click.option("--url", "-u", metavar="URL", help="Another store than the app's own.")
@click.option("--runners", type=int, metavar="N", help=f"Runner processes: {PROCESS_WORKER}")
@click.option("--reload", is_flag=True, help=f"Start again when code changes: {PROCESS_WORKER}")
@click.option("--verbose", "-v", is_flag=True, help="Say more.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON document.")
def work(
    app: str,
    queues: tuple[str, ...],
    imports: tuple[str, ...],
    app_dir: str,
    url: str | None,
    runners: int | None,
    reload: bool,
    verbose: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run a worker for the app MODULE:APP.

    The first SIGINT or SIGTERM lets running jobs end within --grace; the second stops them and gives them back.
    """
    if runners is not None or reload:
        option = "--runners" if runners is not None else "--reload"
        raise click.UsageError(f"{option} {PROCESS_WORKER}")
    served = read_queues(queues)
    session = Session(url=url, app=app, app_dir=app_dir, as_json=as_json)
    with session.code as host, _logs_on_stderr(verbose):
        _import_tasks(host, imports)
        _announce(session, host, app, served)
        chosen = {name: value for name, value in settings.items() if value is not None}
        drained = host.work(served, **chosen)
    if as_json:
        counts = {"succeeded": drained.succeeded, "failed": drained.failed, "left": drained.left}
        session.print.document({"store": host.safe_url, **counts})
    else:
        failed = f"{drained.failed} failed attempt{'' if drained.failed == 1 else 's'}"
        session.print.note(f"stopped: {drained.succeeded} succeeded, {failed}, {drained.left} left.")
    return Exit.DONE


def read_queues(words: tuple[str, ...]) -> dict[str, int | None] | None:
    """`mail:50,pdf:2` as queue → slots of its own; None when nothing was said."""
    served: dict[str, int | None] = {}
    for word in (piece.strip() for text in words for piece in text.split(",")):
        name, colon, number = word.partition(":")
        if not name or (colon and not (number.isascii() and number.isdigit() and int(number) > 0)):
            raise click.BadParameter(f"cannot read {word!r}. Write mail, or mail:50 for 50 slots.", param_hint="-q")
        served[name] = int(number) if colon else None
    return served or None


def _import_tasks(host: Holdfast, imports: tuple[str, ...]) -> None:
    """The modules of --import and of the app's own imports=, with import errors told as such."""
    from .importing import import_modules

    import_modules((*host.imports, *imports))


def _announce(session: Session, host: Holdfast, name: str, served: dict[str, int | None] | None) -> None:
    known = {task.options.queue for task in host.tasks.values()}
    who = f"holdfast {__version__}: working for {name} (pid {os.getpid()})"
    session.print.note(f"{who}, {len(host.tasks)} tasks, store {host.safe_url}")
    for queue in served or ():
        if queue not in known:
            session.print.note(f"note: no task of this app names queue {queue!r}.{nearest(queue, known)}")
    if host.url.startswith("memory:"):
        session.print.note("note: memory:// is seen by this process only; give --url for a store others can reach.")


@contextlib.contextmanager
def _logs_on_stderr(verbose: bool) -> Iterator[None]:
    """While inside, our sentences go to stderr, unless the program already decided where logs go."""
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
