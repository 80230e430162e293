"""`manage.py holdfast …`: the command line of Holdfast for the project's own app.

Every command of `holdfast` works here; `--app`, and the MODULE:APP of `work` and `dev`, are the project's unless given.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand

from ....cli.main import COMMANDS, cli, main
from ...application import the_app

APP = "holdfast.django:app"
_OF_DJANGO = ("--settings", "--pythonpath")  # manage.py has read them already


class Command(BaseCommand):
    """`manage.py holdfast`."""

    help = "Run a worker, look at jobs, operate the store: `manage.py holdfast --help` lists all commands."
    requires_system_checks = ()
    requires_migrations_checks = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Everything behind `manage.py holdfast` is for Holdfast's own command line, which has its own exit codes."""
        words, given = _without(argv[2:])
        code = run(words, app_dir=given.get("--pythonpath"))
        if code:
            sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """`call_command("holdfast", "jobs", …)`: raises SystemExit if the command fails."""
        code = run([*map(str, args), *options.get("words", ())])
        if code:
            sys.exit(code)


def run(words: list[str], *, app_dir: str | None = None) -> int:
    """Run a command for the project's app; returns its exit code."""
    folder = app_dir or sys.path[0] or "."  # of manage.py: a worker's processes must find the same modules
    defaults: dict[str, Any] = {"app": APP, "app_dir": os.path.abspath(folder)}
    queues = the_app().served_queues()
    if queues is not None and "work" in words[:1]:
        defaults["queues"] = [",".join(queues)]
    return main(words, default_map=_default_map(words, defaults))


def _default_map(words: list[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """The defaults for the command that is called, and for its subcommands."""
    name = next((word for word in words if word in COMMANDS), None)
    if name is None:
        return {}
    command = cli.get_command(click.Context(cli), name)
    below = command.commands if isinstance(command, click.Group) else {}
    return {name: {**defaults, **dict.fromkeys(below, defaults)}}


def _without(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words without Django's own options, and those."""
    left: list[str] = []
    given: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if waiting is not None:
            given[waiting], waiting = word, None
        elif name in _OF_DJANGO:
            given[name] = value
            waiting = None if equals else name
        else:
            left.append(word)
    return left, given
