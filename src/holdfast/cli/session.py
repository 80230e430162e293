"""What all commands share: which store, which app, which output format; and finding jobs by either end of their id.

Called by the commands. Opens stores only through `holdfast.Holdfast`. A command that reads, or changes existing data,
never creates a SQLite file: a wrong path is reported instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import JobNotFound
from ..lifecycle import State
from ..names import check_name, nearest
from ..records import JobQuery
from ..worker_status import read
from .exits import CommandFailed, Exit
from .output import Printer

if TYPE_CHECKING:
    from ..app import Holdfast

Command = Callable[..., Any]
SHOWN_CHOICES = 5  # for an ambiguous id
TASKS_SEEN_JOBS = 200  # the newest, whose tasks are known


class Session:
    """One run of one command."""

    def __init__(self, *, url: str | None, app: str | None, app_dir: str, as_json: bool) -> None:
        self._url = url
        self._app = app
        self._app_dir = app_dir
        self.print = Printer(as_json=as_json)

    @property
    def as_json(self) -> bool:
        return self.print.as_json

    @property
    def has_code(self) -> bool:
        return self._app is not None

    @functools.cached_property
    def code(self) -> Holdfast:
        """The user's own app, imported; with --url it uses that store instead of its own."""
        from .app_import import import_app

        if self._app is None:
            raise click.UsageError("this needs the app: give --app MODULE:APP.")
        app = import_app(self._app, self._app_dir)
        if self._url is not None:
            app._aim(self._url)
        return app

    @property
    def app_name(self) -> str:
        """MODULE:APP as given."""
        return self._app or ""

    @property
    def named_url(self) -> str | None:
        """The store given by --url or by the app; None means the default."""
        return self._url if self._url is not None or not self.has_code else self.code.url

    @functools.cached_property
    def known_tasks(self) -> frozenset[str] | None:
        """Names of the app's tasks; None if no app was given, or if it has a catch-all."""
        return frozenset(self.code.tasks) if self.has_code and not self.code._catches_all else None

    @contextlib.contextmanager
    def store(self, *, create: bool = False) -> Iterator[Holdfast]:
        """The store, through an app without tasks or rules of its own: reading must not declare anything."""
        from ..app import Holdfast

        with Holdfast(self.named_url) as app:
            self.check_store(app, create=create)
            yield app

    @contextlib.contextmanager
    def producer(self) -> Iterator[Holdfast]:
        """An app to enqueue with: the user's if given, else one without code."""
        from ..app import Holdfast

        with self.code if self.has_code else Holdfast(self._url) as app:
            self.check_store(app, create=True)
            yield app

    def check_store(self, app: Holdfast, *, create: bool) -> None:
        """Reject a store that no other process can see or, unless `create`, that does not exist."""
        from ..backends import parse_url

        address = parse_url(app.url)
        if address.scheme == "memory":
            raise click.UsageError("memory:// lives inside one process, where no command can reach it. Give --url.")
        if not create and address.scheme == "sqlite" and not holds_something(address.path):
            place = f" ({address.path} does not exist or is empty)" if app.safe_url == app.url else ""
            raise CommandFailed(
                Exit.UNREACHABLE,
                f"there is no store at {app.safe_url}{place}.",
                "Give --url or set HOLDFAST_URL; `holdfast enqueue`, `work` and `migrate` create a store.",
            )

    def would(self, what: str, facts: dict[str, Any]) -> int:
        """--dry-run: report what would be done."""
        if self.as_json:
            self.print.document({"dry_run": True, "would": what, **facts})
        else:
            self.print.note(f"would {what}; nothing was changed.")
        return Exit.DONE

    def announce(self, app: Holdfast) -> None:
        """Print which store is about to be changed."""
        if not self.as_json:
            self.print.note(f"store: {app.safe_url}")


def lists(ctx: click.Context) -> bool:
    """Whether a command group was called without a subcommand: then it lists. Options belong to the subcommand."""
    if ctx.invoked_subcommand is None:
        return True
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"put options after {ctx.invoked_subcommand!r}.", ctx)
    return False


def add_ls(group: click.Group) -> None:
    """Give a group that lists without a subcommand the subcommand `ls`, which does the same."""
    show = group.callback
    if show is not None:
        help = f"The same as `holdfast {group.name}`."
        group.add_command(click.Command("ls", params=list(group.params), callback=show, help=help))


def without_ls(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command that lists anyway, without a leading `ls`."""
    return words[1:] if words[:1] == ("ls",) else words


def holds_something(path: str) -> bool:
    """Whether a file that may be a store exists at that path."""
    try:
        return os.stat(path).st_size > 0 or not os.path.isfile(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # not accessible to this user: opening it reports why
        return True


def find_id(app: Holdfast, given: str) -> str:
    """The id of the only job whose id begins or ends with this; a full id always matches itself.

    A store without an index of ids looks at its newest jobs, then at running, dead, scheduled and waiting ones.
    """
    try:
        return app.job(given).id
    except JobNotFound:
        query = JobQuery(id_ends=(check_name(given, "id"),))
    page = app.jobs(query, limit=SHOWN_CHOICES + 1).page()
    found = [job.id for job in page.jobs]
    if page.after is not None and not found:
        for states in ((State.RUNNING,), (State.DEAD,), (State.SCHEDULED, State.WAITING)):
            more = app.jobs(query, state=states, limit=SHOWN_CHOICES + 1).page()
            found += [job.id for job in more.jobs if job.id not in found]
        if not found:
            raise CommandFailed(
                Exit.NOT_FOUND,
                f"no id begins or ends with {given!r} among the newest {page.scanned:,} jobs, nor among those that are "
                "running, dead, scheduled or waiting.",
                "Give the whole id.",
            )
    return _only(given, found, "job")


def find_letter_id(app: Holdfast, given: str) -> str:
    """The id of the only dead letter whose id begins or ends with this; a full id always matches itself."""
    try:
        return app.dead.get(given).id
    except JobNotFound:
        found = app.dead.list(id_prefix=given, limit=SHOWN_CHOICES + 1)
        if found:
            return _only(given, [letter.id for letter in found], "dead letter")
        return app.dead.get(find_id(app, given)).id


def queue_hint(app: Holdfast, queue: str | None, *, but: str | None = None) -> str:
    """What to say about a queue that nothing is known of; empty if it is known. `but`: one that does not count."""
    known = [] if queue is None else [one.name for one in app.queues.list() if one.name != but]
    if queue is None or queue in known:
        return ""
    return f"there is no queue {queue!r}.{nearest(queue, known)}"


def task_hint(app: Holdfast, task: str) -> str:
    """What to say about a task that no live worker has and no recent job is of; empty if it is known."""
    views = [read(worker.portrait) for worker in app.workers() if not worker.expired]
    known = {name for view in views if view is not None for name in view.tasks or ()}
    known.update(job.task for job in app.jobs(limit=TASKS_SEEN_JOBS))
    if not known or task in known:
        return ""
    ends = sorted(name for name in known if name.endswith(f".{task}"))
    near = f" Did you mean {' or '.join(ends[:3])}?" if ends else nearest(task, known)
    return f"no live worker has a task {task!r}, and no recent job is of this task.{near}"


def _only(given: str, found: list[str], what: str) -> str:
    if not found:
        raise JobNotFound(given, what)
    if len(found) > 1:
        listed = "\n  ".join(sorted(found[:SHOWN_CHOICES]))
        more = " …" if len(found) > SHOWN_CHOICES else ""
        raise CommandFailed(
            Exit.USAGE, f"{given!r} is the beginning or end of several ids:\n  {listed}{more}", "Give more of the id."
        )
    return found[0]


def session_options(command: Command) -> Command:
    """Add --url, --app, --app-dir and --json to a command, and pass a Session as its first argument."""

    @click.option("--url", "-u", metavar="URL", help="The store. [--app's own, HOLDFAST_URL, sqlite:///holdfast.db]")
    @click.option("--app", "-a", metavar="MODULE:APP", help="Import this app: its store, its tasks.")
    @click.option("--app-dir", metavar="DIR", default=".", show_default=True, help="Where to import the app from.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(command)
    def wrapped(*args: Any, url: str | None, app: str | None, app_dir: str, as_json: bool, **kwargs: Any) -> Any:
        return command(Session(url=url, app=app, app_dir=app_dir, as_json=as_json), *args, **kwargs)

    return wrapped
