"""`holdfast completion bash | zsh | fish`: a shell's completion script; and the values that options complete to.

Loaded by main when called, and by session.py for its options. A shell calls the program to complete a word: whatever
goes wrong then, such as a store that cannot be reached, silently completes to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from .exits import Exit

if TYPE_CHECKING:
    from ..app import Holdfast

VARIABLE = "_HOLDFAST_COMPLETE"
NAMES_MAX = 200


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script that completes commands, options, queues, tasks and states in SHELL.

    For bash, put this line into ~/.bashrc: eval "$(holdfast completion bash)". zsh: the same with zsh in ~/.zshrc. For
    fish, write the output to ~/.config/fish/completions/holdfast.fish.
    """
    from .main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}.")
    click.echo(kind(cli, {}, "holdfast", VARIABLE).source())
    return Exit.DONE


def _from_store(find: Callable[[Holdfast], Iterable[str]]) -> Callable[..., list[str]]:
    """A completion that looks into the store which the words so far name."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        given: dict[str, Any] = ctx.params
        with contextlib.suppress(Exception, click.ClickException):
            from .session import Session

            session = Session(
                url=given.get("url"), app=given.get("app"), app_dir=given.get("app_dir") or ".", as_json=True
            )
            with session.store() as app:
                return sorted(name for name in find(app) if name.startswith(incomplete))[:NAMES_MAX]
        return []

    return complete


complete_queue = _from_store(lambda app: (queue.name for queue in app.queues.list()))
complete_task = _from_store(lambda app: app.count(by="task").groups)


def complete_query(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """States, `queue:` and `task:` with what the store has."""
    from ..lifecycle import State

    for field, complete in (("queue:", complete_queue), ("task:", complete_task)):
        if incomplete.startswith(field):
            return [f"{field}{name}" for name in complete(ctx, param, incomplete.removeprefix(field))]
    words = [*(state.value for state in State), "live", "queue:", "task:", "group:", "error:", "age:", "attempts:"]
    return [word for word in words if word.startswith(incomplete)]
