"""Every `holdfast …` line of the console blocks is one the command line accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from tests.docs.doc_pages import PAGES, ROOT, blocks, console_lines, name_of

from holdfast.cli.main import cli

_SETTING = re.compile(r"^[A-Z_]+=")


def holdfast_lines(page: Path) -> list[str]:
    found: list[str] = []
    for block in blocks(page):
        if block.language == "console":
            found += [line for line in console_lines(block) if "holdfast" in line.split()[:3]]
    return found


COMMANDS = sorted({(name_of(page), line) for page in PAGES if page.exists() for line in holdfast_lines(page)})


def parse(
    words: list[str],
    command: click.Command,
    parent: click.Context | None = None,
    defaults: dict[str, Any] | None = None,
) -> None:
    """Parse a command line down to its last sub-command, without running anything."""
    name = words[0]
    try:
        context = command.make_context(name, list(words[1:]), parent=parent, default_map=defaults)
    except click.exceptions.Exit:  # --help, --version
        return
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return
        member = command.get_command(context, rest[0])
        assert member is not None, f"{name} has no command {rest[0]!r}"
        parse(rest, member, context, None if defaults is None else defaults.get(rest[0]))


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_command_line_accepts_it(page: str, line: str) -> None:
    words = shlex.split(line.partition(" | ")[0].partition(" > ")[0].removesuffix(" &"), comments=True)
    while _SETTING.match(words[0]):
        words.pop(0)
    managed = words[:2] == ["python", "manage.py"]  # Django's, which fills in the app
    words = words[2:] if managed else words
    assert words[0] == "holdfast", f"{page}: {line}"
    parse(words, cli, defaults={words[1]: {"app": "holdfast.django:app"}} if managed else None)


def test_the_two_commands_of_the_readme_exist() -> None:
    shown = [
        line for block in blocks(ROOT / "README.md") if block.language == "console" for line in console_lines(block)
    ]
    for command in ("./demo", "./check"):
        assert command in [line.split()[0] for line in shown]
        assert (ROOT / command).stat().st_mode & 0o111, f"{command} is not executable"
